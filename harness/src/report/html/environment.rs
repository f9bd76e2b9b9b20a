//! Where the run ran: host, builds, devices, switches.

use crate::report::Environment;
use maud::{Markup, html};

/// The host on one line.
pub(crate) fn host(environment: &Environment) -> String {
    let cpu = environment.cpu.as_ref().map(|cpu| format!(", {cpu}")).unwrap_or_default();
    format!("{} {}{cpu}", environment.os, environment.arch)
}

/// The builds on one line, each with its version.
pub(crate) fn versions(environment: &Environment) -> String {
    let builds = environment.builds.iter().map(|build| match &build.version {
        Some(version) => format!("{} ({version})", build.name),
        None => build.name.clone(),
    });
    builds.collect::<Vec<_>>().join(", ")
}

/// Builds with their libraries, devices with their drivers, switches.
pub(crate) fn render(environment: &Environment) -> Markup {
    html! {
        section #environment aria-labelledby="environment-title" {
            h2 #environment-title { "Environment" }
            div.scroll tabindex="0" role="group" aria-label="Devices" {
                table {
                    caption { "Devices" }
                    thead { tr { th scope="col" { "device" } th scope="col" { "kind" } th scope="col" { "description" } th scope="col" { "driver" } th scope="col" { "memory" } } }
                    tbody {
                        @for device in &environment.devices {
                            tr {
                                th scope="row" { (device.selector) }
                                td { (device.kind) }
                                td { (device.description) }
                                td { (device.driver.as_deref().unwrap_or("–")) }
                                td { (device.memory_total.map_or_else(|| "–".to_owned(), super::bytes)) }
                            }
                        }
                    }
                }
            }
            @for build in &environment.builds {
                h3 { "Build " (build.name) }
                p {
                    "ggml " (build.version.as_deref().unwrap_or("of unknown version"))
                    ", commit " (build.commit.as_deref().unwrap_or("unknown"))
                }
                @if !build.files.is_empty() {
                    details {
                        summary { (build.files.len()) " libraries and their SHA-256" }
                        div.scroll tabindex="0" role="group" aria-label=(format!("Libraries of {}", build.name)) {
                            table {
                                caption { "Libraries of " (build.name) }
                                thead { tr { th scope="col" { "file" } th scope="col" { "SHA-256" } } }
                                tbody {
                                    @for file in &build.files {
                                        tr { th scope="row" { (file.name) } td { code { (file.sha256) } } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            h3 { "Switches" }
            @if environment.switches.is_empty() {
                p { "No environment switch was set." }
            } @else {
                ul.plain {
                    @for (name, value) in &environment.switches {
                        li { code { (name) "=" (value) } }
                    }
                }
            }
        }
    }
}
