//! Whether two captures are of the same thing: same model, same tokens, same rows, same layers.

use super::CompareError;
use crate::capture::{Cache, CaptureReader, KvSet};

/// Checks everything that must be equal before any figure means something. `with_caches` includes K and V.
pub(super) fn check(
    reference: &CaptureReader,
    test: &CaptureReader,
    with_caches: bool,
) -> Result<(), CompareError> {
    let same = CompareError::unless_equal::<usize>;
    if !reference.is_foreign() && !test.is_foreign() {
        let hash = |reader: &CaptureReader| reader.meta().model.sha256.clone();
        CompareError::unless_equal("the model's hash", hash(reference), hash(test))?;
    }
    same("vocabulary", reference.vocab(), test.vocab())?;
    same("rows of logits", reference.rows(), test.rows())?;
    same_list("tokens", reference.tokens(), test.tokens())?;
    same_list("positions", reference.positions(), test.positions())?;
    same_list("step", reference.step(), test.step())?;
    let has_greedy = |reader: &CaptureReader| if reader.greedy().is_some() { "present" } else { "absent" };
    // The oracle follows a trajectory and has no run of its own, and another runtime may have none.
    let lacks_greedy = |reader: &CaptureReader| reader.is_foreign() && reader.greedy().is_none();
    if !reference.meta().is_oracle() && !lacks_greedy(reference) && !lacks_greedy(test) {
        CompareError::unless_equal("the greedy run", has_greedy(reference), has_greedy(test))?;
    }
    let unmask = |reader: &CaptureReader| reader.unmask().cloned().unwrap_or_default();
    let (reference_unmask, test_unmask) = (unmask(reference), unmask(test));
    same_list("unmask.step", &reference_unmask.step, &test_unmask.step)?;
    same_list("unmask.position", &reference_unmask.position, &test_unmask.position)?;
    same_list("unmask.token", &reference_unmask.token, &test_unmask.token)?;
    let lacks_routing = |reader: &CaptureReader| reader.is_foreign() && reader.routing().is_none();
    if !lacks_routing(reference) && !lacks_routing(test) {
        let sizes = |reader: &CaptureReader| {
            reader.routing().map(|r| format!("{} of {} in {} layers", r.used, r.experts, r.chosen.len()))
        };
        let told = |reader: &CaptureReader| sizes(reader).unwrap_or_else(|| "absent".to_owned());
        CompareError::unless_equal("the experts that work", told(reference), told(test))?;
        if let (Some(reference), Some(test)) = (reference.routing(), test.routing()) {
            same_list("route_step", &reference.rows.step, &test.rows.step)?;
            same_list("route_position", &reference.rows.position, &test.rows.position)?;
        }
    }
    if with_caches {
        let by_step = has_steps(reference, test);
        if let (Some(reference), Some(test)) = (reference.step_rows(), test.step_rows()) {
            same_list("kv_step", &reference.step, &test.step)?;
            same_list("kv_position", &reference.position, &test.position)?;
        }
        for set in KvSet::ALL {
            // Another runtime may have kept the caches as they are stored only.
            let lacks = |reader: &CaptureReader| reader.is_foreign() && reader.layers_of(set) == 0;
            if set == KvSet::BeforeStoring && (lacks(reference) || lacks(test)) {
                continue;
            }
            let what = match set {
                KvSet::Stored => "layers of K/V",
                KvSet::BeforeStoring => "layers of K/V before storing",
                KvSet::Steps if by_step => "layers of K/V by step",
                KvSet::Steps => continue,
            };
            let (layers, others) = (reference.layers_of(set), test.layers_of(set));
            let first = set.tensor(Cache::K, layers.min(others));
            CompareError::unless_equal(format!("{what} ({first} on)"), layers, others)?;
            for layer in 0..reference.layers_of(set) {
                for &cache in Cache::ALL {
                    let shape =
                        |reader: &CaptureReader| format!("{:?}", reader.kv_shape_of(set, cache, layer));
                    let what = format!("the shape of {}", set.tensor(cache, layer));
                    CompareError::unless_equal(what, shape(reference), shape(test))?;
                }
            }
        }
    }
    Ok(())
}

/// Whether both arms say which pass computed which rows of the caches: captures of other runtimes and of earlier
/// versions need not.
pub(super) fn has_steps(reference: &CaptureReader, test: &CaptureReader) -> bool {
    reference.step_rows().is_some() && test.step_rows().is_some()
}

/// Checks that two lists are equal, and names the first place where they are not.
fn same_list(what: &str, reference: &[i32], test: &[i32]) -> Result<(), CompareError> {
    CompareError::unless_equal(format!("the number of {what}"), reference.len(), test.len())?;
    for (index, (r, x)) in reference.iter().zip(test).enumerate() {
        CompareError::unless_equal(format!("{what} at index {index}"), r, x)?;
    }
    Ok(())
}
