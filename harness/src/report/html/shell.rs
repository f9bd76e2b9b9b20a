//! What every page has: one file that needs no network, with a policy that allows its own style and script alone.

use base64::Engine;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

/// The style of all pages.
pub(crate) const STYLE: &str = include_str!("style.css");
/// The script that brings the buttons of commands to life.
pub(crate) const COPY: &str = include_str!("copy.js");

/// A page around its body.
pub(crate) struct Page<'a> {
    /// The title of its window.
    pub(crate) title: &'a str,
    /// The version of ggml-parity that made what it shows.
    pub(crate) version: &'a str,
    /// What its style has beyond that of all pages.
    pub(crate) style: &'a str,
    /// Its script.
    pub(crate) script: &'a str,
    /// What the link at the very top leads to, by its text: the element `main`.
    pub(crate) skip: &'a str,
    /// Everything between that link and the script.
    pub(crate) body: Markup,
}

/// The page as a file.
pub(crate) fn render(page: &Page<'_>) -> String {
    let style = [STYLE, page.style].concat();
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy(&style, page.script));
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("ggml-parity {}", page.version));
                title { (page.title) }
                link rel="icon" href="data:,";
                style { (PreEscaped(style)) }
            }
            body {
                a.skip href="#main" { (page.skip) }
                (page.body)
                script { (PreEscaped(page.script)) }
            }
        }
    };
    markup.into_string()
}

/// What the page may load and run: this style, this script, no other.
fn policy(style: &str, script: &str) -> String {
    let hash = |text: &str| base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; base-uri 'none'; \
         form-action 'none'",
        hash(style),
        hash(script)
    )
}

/// The footer, which names the files beside this one.
pub(crate) fn footer(version: &str, files: &[&str]) -> Markup {
    html! {
        footer {
            p {
                "Written by ggml-parity " (version) ". Beside this file: "
                @for (i, name) in files.iter().enumerate() {
                    @if i > 0 { ", " }
                    a href=(name) { (name) }
                }
                "."
            }
        }
    }
}

/// A command and the button that copies it, which the script brings to life.
pub(crate) fn command(label: &str, command: &str) -> Markup {
    html! {
        div.command {
            span.label { (label) }
            code { (command) }
            button.copy type="button" hidden { "Copy" span.away { " " (label) } }
        }
    }
}
