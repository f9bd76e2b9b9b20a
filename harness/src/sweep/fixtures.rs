//! A small sweep without a model, for tests.

use super::result::{
    Against, Answer, Arm, CorpusUse, Correction, Divergence, Item, Judgement, LogitFigures, Loss, Pairing,
    PairingKind, Piece, RowStatus, SCHEMA, Settings, Sweep, SweepRun, Templates,
};
use super::rows::without_result;
use super::summary::summarise;
use crate::plan::CellId;
use crate::report::Environment;

fn arm(id: &CellId, reference: Option<&CellId>) -> Arm {
    let pairing = |reference: &CellId| Pairing { kind: PairingKind::Parity, reference: reference.clone() };
    Arm {
        id: id.clone(),
        model: id.case.model.clone(),
        weights: id.case.weights.clone(),
        mode: id.case.mode,
        options: id.case.options,
        build: id.build.clone(),
        device: id.device.clone(),
        device_info: None,
        declared: reference.is_some(),
        pairings: reference.into_iter().map(pairing).collect(),
    }
}

/// Settings with few resamples.
pub(crate) fn settings() -> Settings {
    Settings {
        tags: Vec::new(),
        limit: None,
        chat: Templates::Messages,
        max_tokens: None,
        steps: None,
        context: 4096,
        stride: 2048,
        mask_share: 0.3,
        threads: 1,
        level: 0.95,
        resamples: 200,
        seed: 0,
    }
}

fn answer(wrong: bool) -> Answer {
    Answer {
        tokens: vec![5, if wrong { 6 } else { 7 }, 1],
        text: if wrong { "35" } else { "34" }.to_owned(),
        ended: true,
        decisions: 3,
        judged: if wrong { Judgement::Wrong } else { Judgement::Right },
        read: Some(if wrong { "35" } else { "34" }.to_owned()),
        exactly: Some(!wrong),
    }
}

fn against(pairing: &Pairing, i: usize, wrong: bool) -> Against {
    let piece = |token: u32, text: &str| Some(Piece { token, text: text.to_owned() });
    Against {
        kind: pairing.kind,
        reference: pairing.reference.clone(),
        exact: Some(!wrong),
        divergence: wrong.then(|| Divergence {
            decision: 1,
            index: 1,
            margin: Some(0.1),
            reference: piece(7, "4"),
            test: piece(6, "5"),
        }),
        logits: Some(LogitFigures {
            rows: 2,
            nmse: 1e-6 * (i + 1) as f64,
            kl_mean: 0.5,
            kl_max: 0.75,
            kl_rows: vec![0.25, 0.75],
            entropy_mean: 0.0,
            entropy_max: 0.0,
            same_top: if wrong { 1 } else { 2 },
        }),
    }
}

/// A sweep of `n` items on the CPU and on Vulkan0, which loses the first `lost`.
pub(crate) fn sweep(n: usize, lost: usize) -> Sweep {
    let id = |text: &str| -> CellId { text.parse().expect("an id") };
    let (cpu, gpu) = (id("m/f32/generate@b:CPU"), id("m/f32/generate@b:Vulkan0"));
    let item = |i: usize| Item {
        id: format!("c/i{i}"),
        index: i as u64,
        corpus: "c".to_owned(),
        tags: vec![if i.is_multiple_of(2) { "even" } else { "odd" }.to_owned()],
        prompt: "17*2?".to_owned(),
        expected: Some("34".to_owned()),
        scored: false,
        generates: true,
    };
    let items: Vec<Item> = (0..n).map(item).collect();
    let arms = vec![arm(&cpu, None), arm(&gpu, Some(&cpu))];
    let mut rows = Vec::new();
    for (i, item) in items.iter().enumerate() {
        for arm in &arms {
            let reference = arm.pairings.is_empty();
            let wrong = !reference && i < lost;
            let mut row = without_result(&item.id, arm, RowStatus::Done, String::new());
            row.prompt_tokens = 8;
            row.nodes = [7, 7];
            row.answer = Some(answer(wrong));
            row.loss = Some(Loss { nats: if reference { 20.0 } else { 22.0 }, tokens: 10 });
            row.against = arm.pairings.iter().map(|pairing| against(pairing, i, wrong)).collect();
            rows.push(row);
        }
    }
    let sha256 = "00".repeat(32);
    let corpus = CorpusUse { name: "c".to_owned(), sha256, items: n as u64, selected: n as u64 };
    let mut sweep = Sweep {
        schema: SCHEMA.to_owned(),
        run: SweepRun { name: "fixture".to_owned(), ..SweepRun::default() },
        corpora: vec![corpus],
        models: Vec::new(),
        settings: settings(),
        environment: Environment::default(),
        arms,
        left_out: Vec::new(),
        items,
        rows,
        pieces: Default::default(),
        summaries: Vec::new(),
        correction: Correction::default(),
        limit: None,
        parts: Vec::new(),
    };
    summarise(&mut sweep);
    sweep
}
