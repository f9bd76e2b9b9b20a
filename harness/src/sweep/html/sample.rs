//! A small sweep for tests of what shows answers.

use crate::sweep::result::{
    Against, Answer, Arm, Item, Judgement, LogitFigures, Pairing, PairingKind, Row, RowStatus, Sweep,
};
use crate::sweep::rows::without_result;
use crate::sweep::summary::summarise;

/// A text that would be a script in a page that does not escape.
pub(in crate::sweep) const HOSTILE: &str = "</script><script>alert(1)</script><!-- & \"";

fn arm(id: &str, reference: Option<&str>) -> Arm {
    let id: crate::plan::CellId = id.parse().unwrap();
    let pairing = |id: &str| Pairing { kind: PairingKind::Parity, reference: id.parse().unwrap() };
    Arm {
        model: id.case.model.clone(),
        weights: id.case.weights.clone(),
        mode: id.case.mode,
        options: id.case.options,
        build: id.build.clone(),
        device: id.device.clone(),
        device_info: None,
        declared: true,
        pairings: reference.map(pairing).into_iter().collect(),
        id,
    }
}

/// Twelve items on a reference and on a device that loses the first eight of them; the last crashed there.
pub(in crate::sweep) fn sample() -> Sweep {
    let (cpu, gpu) = ("m/f32/generate@b:CPU", "m/f32/generate@b:Vulkan0");
    let arms = vec![arm(cpu, None), arm(gpu, Some(cpu))];
    let items: Vec<Item> = (0..12)
        .map(|i| Item {
            id: format!("c/i{i}"),
            index: i,
            corpus: "c".to_owned(),
            tags: vec!["odd".to_owned()],
            prompt: HOSTILE.to_owned(),
            expected: Some("7".to_owned()),
            scored: false,
            generates: true,
        })
        .collect();
    let rows = items.iter().enumerate().flat_map(|(i, item)| {
        arms.iter().enumerate().map(move |(place, arm)| row(i, item, place, arm)).collect::<Vec<_>>()
    });
    let mut sweep: Sweep = serde_json::from_value(serde_json::json!({
        "schema": crate::sweep::result::SCHEMA,
        "run": { "name": "s", "started": "2026-01-01T00:00:00Z", "seconds": 1.0, "command": "ggml-parity sweep", "version": "0.1.0", "computed": 24, "resumed": 0 },
        "corpora": [], "models": [],
        "settings": { "tags": [], "limit": null, "chat": "messages", "max_tokens": null, "steps": null, "context": 64, "stride": 32, "mask_share": 0.3, "threads": 1, "level": 0.95, "resamples": 100, "seed": 0 },
        "environment": crate::report::Environment::default(),
        "arms": [], "items": [], "rows": [], "summaries": [],
        "pieces": { "m": { "5": "five ", "6": "<b>six</b>", "7": "seven" } },
        "correction": { "method": "", "all_items": 0, "by_tag": 0, "sentence": "" },
    }))
    .unwrap();
    sweep.rows = rows.collect();
    (sweep.arms, sweep.items) = (arms, items);
    summarise(&mut sweep);
    sweep
}

fn row(i: usize, item: &Item, place: usize, arm: &Arm) -> Row {
    if (i, place) == (11, 1) {
        return without_result(&item.id, arm, RowStatus::Crashed, HOSTILE.to_owned());
    }
    let mut row = without_result(&item.id, arm, RowStatus::Done, String::new());
    let wrong = place == 1 && i < 8;
    row.answer = Some(Answer {
        tokens: if wrong { vec![5, 6] } else { vec![5, 7] },
        text: if wrong { "five six" } else { "five seven" }.to_owned(),
        ended: true,
        decisions: 2,
        judged: if wrong { Judgement::Wrong } else { Judgement::Right },
        read: Some("7".to_owned()),
        exactly: Some(!wrong),
    });
    row.against = arm
        .pairings
        .iter()
        .map(|pairing| Against {
            kind: pairing.kind,
            reference: pairing.reference.clone(),
            exact: Some(!wrong),
            divergence: None,
            logits: Some(LogitFigures {
                rows: 2,
                nmse: 1e-6,
                kl_mean: 1e-4,
                kl_max: 1e-3,
                kl_rows: vec![0.0, 1e-3],
                entropy_mean: 0.0,
                entropy_max: 0.0,
                same_top: 2,
            }),
        })
        .collect();
    row
}
