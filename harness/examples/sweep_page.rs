//! Writes the page of a sweep that never was, with everything that pages of sweeps show, for looking at it and for the
//! browser's checks:
//!
//! ```text
//! cargo run --release --example sweep_page -- FOLDER [ITEMS]
//! ```
//!
//! Answers and figures are made up and the same each time; accuracies, tests and intervals are those of the harness.

use ggml_parity::capture::BuildInfo;
use ggml_parity::plan::CellId;
use ggml_parity::report::Environment;
use ggml_parity::sweep::render;
use ggml_parity::sweep::result::{
    Against, Answer, Arm, CorpusUse, Correction, Divergence, Item, Judgement, LogitFigures, Loss, ModelUse,
    Pairing, PairingKind, Piece, Row, RowStatus, SCHEMA, Settings, Sweep, SweepRun, Templates,
};
use ggml_parity::sweep::summary::{set_limit, summarise};
use std::collections::BTreeMap;
use std::path::Path;

const MODEL: &str = "dream-arith";
const WEIGHTS: [&str; 3] = ["f16", "q8_0", "q4_k_m"];
const MODES: [&str; 3] = ["generate", "generate?cache=full", "generate?cache=sparse&keep=1"];
const DEVICES: [&str; 3] = ["CPU", "CPU+repack", "Vulkan0"];
const TAGS: [&str; 4] = ["product", "sum", "difference", "control"];
/// A text that would be a script in a page that does not escape, and one that would end one.
const HOSTILE: &str = "<script>alert(1)</script> \"'&amp; </script><img src=x onerror=alert(2)> <!--";
/// The texts of tokens.
const PIECES: [&str; 24] = [
    "<|end|>",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "+",
    "=",
    "*",
    " the",
    " answer",
    " is",
    "\n",
    "é",
    "日本",
    "مرحبا",
    "🙂",
    " </script>",
    " therefore",
];
/// How often an arm errs, by mode and by weights.
const ERRS: [[f64; 3]; 3] = [[0.02, 0.02, 0.16], [0.02, 0.02, 0.01], [0.04, 0.05, 0.3]];

/// Draws that are the same on every machine.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        // SplitMix64, by Steele, Lea and Flood.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: sweep_page FOLDER [ITEMS]")?;
    let count: usize = arguments.next().map_or(Ok(120), |n| n.parse())?;
    let sweep = sweep(count);
    Ok(render::write(Path::new(&folder), &sweep)?)
}

fn id(weights: &str, mode: &str, device: &str) -> CellId {
    format!("{MODEL}/{weights}/{mode}@npm-3.21.1:{device}").parse().expect("an id")
}

/// All arms, each after what it is held against.
fn arms() -> Vec<Arm> {
    let mut arms = Vec::new();
    for weights in WEIGHTS {
        for mode in MODES {
            for device in DEVICES {
                let own = id(weights, mode, device);
                let mut pairings = Vec::new();
                let mut pair = |kind, reference: CellId| pairings.push(Pairing { kind, reference });
                if device != DEVICES[0] {
                    pair(PairingKind::Parity, id(weights, mode, DEVICES[0]));
                }
                if mode != MODES[0] {
                    pair(PairingKind::Baseline, id(weights, MODES[0], device));
                }
                arms.push(Arm {
                    model: MODEL.to_owned(),
                    weights: weights.to_owned(),
                    mode: own.case.mode,
                    options: own.case.options,
                    build: own.build.clone(),
                    device: own.device.clone(),
                    device_info: None,
                    declared: true,
                    pairings,
                    id: own,
                });
            }
        }
    }
    arms
}

fn items(count: usize) -> Vec<Item> {
    let item = |i: usize| {
        let scored = i % 10 == 9;
        let prompt = match i {
            3 => HOSTILE.to_owned(),
            _ if scored => format!(
                "Passage {i}: once upon a time, in a land of matrices, rows and columns lived in peace."
            ),
            _ => format!("user: {}*{}?", 12 + i % 80, 7 + i % 13),
        };
        let tags = if scored { vec!["passage".to_owned()] } else { vec![TAGS[i % TAGS.len()].to_owned()] };
        let expected = (!scored && i % 7 != 6).then(|| ((12 + i % 80) * (7 + i % 13)).to_string());
        let id = format!("{}/item-{i:04}", if scored { "passages" } else { "arithmetic" });
        let corpus = if scored { "passages" } else { "arithmetic" }.to_owned();
        Item { id, index: i as u64, corpus, tags, prompt, expected, scored, generates: !scored }
    };
    (0..count).map(item).collect()
}

/// The answer that an item gets where nothing is wrong.
fn right_answer(i: usize) -> Vec<u32> {
    let mut draws = Draws(i as u64);
    let length = 6 + draws.below(24);
    let mut tokens: Vec<u32> = (0..length).map(|_| 1 + draws.below(PIECES.len() as u64 - 1) as u32).collect();
    tokens.push(0);
    tokens
}

/// What an arm makes of it: its error is that of the weights, the mode and the device.
fn answer_of(i: usize, item: &Item, place: usize) -> Answer {
    let (weights, mode, device) = (place / 9, place / 3 % 3, place % 3);
    let mut tokens = right_answer(i);
    // The same item is hard for every arm of these weights and mode.
    let hard = Draws((i * 31 + weights * 7 + mode) as u64 ^ 0x5eed).share();
    let on_device = Draws((i * 131 + place) as u64).share();
    let errs = ERRS[mode][weights] * 2.0;
    let mut wrong = hard < errs;
    let mut change = |seed: u64| {
        let mut draws = Draws(seed);
        let at = draws.below(tokens.len() as u64 - 1) as usize;
        tokens[at] = 1 + draws.below(10) as u32;
        if draws.share() < 0.4 {
            tokens.insert(at, 14);
        }
        if draws.share() < 0.3 {
            tokens.remove(at / 2);
        }
    };
    if wrong {
        change((i * 17 + weights * 5 + mode) as u64);
    }
    if device == 2 && on_device < 0.06 + 0.05 * mode as f64 {
        change((i * 19 + place) as u64);
        wrong |= on_device < 0.03;
    }
    let text = tokens.iter().map(|&t| if t == 0 { "" } else { PIECES[t as usize] }).collect();
    let judged = match (&item.expected, wrong) {
        (None, _) => Judgement::Unjudged,
        (Some(_), true) => Judgement::Wrong,
        (Some(_), false) => Judgement::Right,
    };
    let read = item.expected.as_ref().map(|right| if wrong { format!("{right}1") } else { right.clone() });
    let decisions = tokens.len() as u64;
    Answer {
        exactly: item.expected.as_ref().map(|_| !wrong),
        tokens,
        text,
        ended: i % 11 != 5,
        decisions,
        judged,
        read,
    }
}

fn row(i: usize, item: &Item, arms: &[Arm], place: usize) -> Row {
    let arm = &arms[place];
    let mut draws = Draws((i * 1009 + place) as u64);
    let (status, reason) = match (i, place) {
        (5, 8) => (RowStatus::Crashed, format!("signal 11 (SIGSEGV): {HOSTILE}")),
        (8, 8) => (RowStatus::Timeout, "no result within 600 s".to_owned()),
        (2, _) => (RowStatus::Inapplicable, "the vocabulary lacks `🙃`".to_owned()),
        _ => (RowStatus::Done, String::new()),
    };
    let done = status == RowStatus::Done;
    let answer = (done && item.generates).then(|| answer_of(i, item, place));
    let base = 900.0 + 40.0 * (i % 7) as f64;
    let worse = [1.0, 1.0004, 1.012][place / 9] + 0.0001 * (draws.share() - 0.5);
    let loss = (done && item.scored).then_some(Loss { nats: base * worse, tokens: 400 });
    let against = arm.pairings.iter().filter(|_| done).map(|pairing| {
        let reference = arms.iter().position(|other| other.id == pairing.reference).expect("an arm");
        against(i, item, answer.as_ref(), pairing, reference, place)
    });
    Row {
        item: item.id.clone(),
        arm: arm.id.clone(),
        status,
        reason,
        retried: (i == 4 && place == 8).then(|| "signal 6 (SIGABRT)".to_owned()),
        prompt_tokens: 8,
        against: against.collect(),
        answer,
        loss,
        nonfinite: 0,
        nodes: [100, 100],
        seconds: 0.25,
        forced_seconds: 0.5,
    }
}

fn against(
    i: usize,
    item: &Item,
    answer: Option<&Answer>,
    pairing: &Pairing,
    reference: usize,
    place: usize,
) -> Against {
    let mut draws = Draws((i * 7919 + place * 3 + reference) as u64);
    let theirs = item.generates.then(|| answer_of(i, item, reference));
    let pair = answer.zip(theirs.as_ref());
    let divergence = pair.and_then(|(mine, theirs)| {
        let longest = mine.tokens.len().max(theirs.tokens.len());
        let at = (0..longest).find(|&at| mine.tokens.get(at) != theirs.tokens.get(at))?;
        let piece = |tokens: &[u32]| {
            tokens.get(at).map(|&token| Piece { token, text: PIECES[token as usize].to_owned() })
        };
        Some(Divergence {
            decision: at as u64,
            index: at as u64,
            margin: Some(draws.share() * 0.1),
            reference: piece(&theirs.tokens),
            test: piece(&mine.tokens),
        })
    });
    let scale = match pairing.kind {
        PairingKind::Parity if place % 3 == 1 => 0.0,
        PairingKind::Parity => 1e-7,
        PairingKind::Baseline => 3e-3,
    };
    let kl_rows: Vec<f64> = (0..24).map(|_| scale * 10f64.powf(3.0 * draws.share() - 2.0)).collect();
    let mean = kl_rows.iter().sum::<f64>() / 24.0;
    Against {
        kind: pairing.kind,
        reference: pairing.reference.clone(),
        exact: pair.map(|_| divergence.is_none()),
        divergence,
        logits: Some(LogitFigures {
            rows: 24,
            nmse: mean * 0.7,
            kl_mean: mean,
            kl_max: kl_rows.iter().copied().fold(0.0, f64::max),
            kl_rows,
            entropy_mean: mean * 0.1,
            entropy_max: mean,
            same_top: 24 - u64::from(scale > 1e-4),
        }),
    }
}

fn sweep(count: usize) -> Sweep {
    let (arms, items) = (arms(), items(count));
    let rows = items.iter().enumerate().flat_map(|(i, item)| {
        let arms = &arms;
        (0..arms.len()).map(move |place| row(i, item, arms, place))
    });
    let pieces: BTreeMap<u32, String> = (0..).zip(PIECES.map(str::to_owned)).collect();
    let mut sweep = Sweep {
        schema: SCHEMA.to_owned(),
        run: SweepRun {
            name: "sweep-page".to_owned(),
            started: "2026-01-02T03:04:05Z".to_owned(),
            seconds: 812.5,
            command: "ggml-parity sweep --corpus arithmetic --model dream-arith".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..SweepRun::default()
        },
        corpora: ["arithmetic", "passages"]
            .map(|name| CorpusUse {
                name: name.to_owned(),
                sha256: "0123456789abcdef".repeat(4),
                items: count as u64,
                selected: items.iter().filter(|item| item.corpus == name).count() as u64,
            })
            .into(),
        models: WEIGHTS
            .map(|weights| ModelUse {
                name: MODEL.to_owned(),
                weights: weights.to_owned(),
                given: MODEL.to_owned(),
                sha256: "0123456789abcdef".repeat(4),
                architecture: "dream".to_owned(),
            })
            .into(),
        settings: Settings {
            tags: Vec::new(),
            limit: None,
            chat: Templates::Messages,
            max_tokens: Some(32),
            steps: None,
            context: 4096,
            stride: 2048,
            mask_share: 0.3,
            threads: 1,
            level: 0.95,
            resamples: 500,
            seed: 0,
        },
        environment: Environment {
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            cpu: Some("Some Processor with 2 cores".to_owned()),
            builds: vec![BuildInfo {
                name: "npm-3.21.1".to_owned(),
                version: Some("0.23.0".to_owned()),
                commit: Some("abcdef0".to_owned()),
                files: Vec::new(),
            }],
            ..Environment::default()
        },
        rows: rows.collect(),
        arms,
        left_out: vec!["dream-arith/q8_0 on CPU+amx: no matrix of it can lie there".to_owned()],
        items,
        pieces: [(MODEL.to_owned(), pieces)].into(),
        summaries: Vec::new(),
        correction: Correction::default(),
        limit: None,
        parts: Vec::new(),
    };
    summarise(&mut sweep);
    set_limit(&mut sweep, 5.0);
    sweep
}
