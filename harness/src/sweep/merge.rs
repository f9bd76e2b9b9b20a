//! Several sweeps as one: shards of the items, or arms of several machines.
//!
//! The sweeps must have the same corpora, models and settings. A row that several have must be the same in all, its times
//! aside. Summaries are made anew over all rows.

use super::result::{Arm, Item, Row, RowStatus, Sweep, SweepPart, SweepRun};
use super::rows::without_result;
use super::summary;
use crate::plan::CellId;
use crate::report::Environment;
use crate::report::merge::Prefer;
use std::collections::BTreeMap;

/// Conflicts that are told one by one at most.
const TOLD: usize = 10;

/// Sweeps that cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// There is nothing to merge.
    #[error("no sweep to merge")]
    Nothing,
    /// Sweeps of other things.
    #[error("{field} differs between the sweeps {first} and {other}: they are not parts of one sweep")]
    Differs {
        /// What differs.
        field: String,
        /// The first sweep.
        first: String,
        /// The other one.
        other: String,
    },
    /// Rows of which the sweeps say different things.
    #[error(
        "{} rows differ between the sweeps (--prefer newest or --prefer worst decides):\n{}",
        .0.len(), list(.0)
    )]
    Conflicts(Vec<String>),
}

fn list(conflicts: &[String]) -> String {
    let mut lines: Vec<String> = conflicts.iter().take(TOLD).map(|line| format!("  {line}")).collect();
    if conflicts.len() > TOLD {
        lines.push(format!("  … and {} more", conflicts.len() - TOLD));
    }
    lines.join("\n")
}

/// Puts `.label` behind the name of the build in every id of a sweep, so that the arms of machines which name their
/// devices alike are not taken for the same.
pub fn label(sweep: &mut Sweep, label: &str) {
    let named = |build: &str| format!("{build}.{label}");
    let rename = |id: &mut CellId| id.build = named(&id.build);
    for arm in &mut sweep.arms {
        rename(&mut arm.id);
        arm.build = named(&arm.build);
        arm.pairings.iter_mut().for_each(|pairing| rename(&mut pairing.reference));
    }
    for row in &mut sweep.rows {
        rename(&mut row.arm);
        row.against.iter_mut().for_each(|against| rename(&mut against.reference));
    }
    for build in &mut sweep.environment.builds {
        build.name = named(&build.name);
    }
}

/// Puts sweeps together; `run` is the header of the result.
///
/// # Errors
/// Sweeps of other corpora, models or settings, and rows that differ where nothing says which counts.
pub fn merge(sweeps: &[Sweep], run: SweepRun, prefer: Option<Prefer>) -> Result<Sweep, MergeError> {
    let first = sweeps.first().ok_or(MergeError::Nothing)?;
    let mut merged = Sweep { run, environment: Environment::default(), parts: Vec::new(), ..first.clone() };
    let mut items: BTreeMap<u64, Item> = BTreeMap::new();
    let mut rows: BTreeMap<(u64, CellId), (usize, Row)> = BTreeMap::new();
    let mut conflicts = Vec::new();
    for (place, sweep) in sweeps.iter().enumerate() {
        check(first, sweep)?;
        let differs = |field: String| differs(field, first, sweep);
        merged.environment.merge(&sweep.environment);
        for model in &sweep.models {
            let same = merged.models.iter().find(|m| (&m.name, &m.weights) == (&model.name, &model.weights));
            match same {
                None => merged.models.push(model.clone()),
                Some(same) if same.sha256 != model.sha256 => {
                    return Err(differs(format!("model {}/{}", model.name, model.weights)));
                }
                Some(_) => {}
            }
        }
        for arm in &sweep.arms {
            add_arm(&mut merged.arms, arm).map_err(differs)?;
        }
        for line in &sweep.left_out {
            if !merged.left_out.contains(line) {
                merged.left_out.push(line.clone());
            }
        }
        for (model, pieces) in &sweep.pieces {
            merged.pieces.entry(model.clone()).or_default().extend(pieces.clone());
        }
        let mut index = BTreeMap::new();
        for item in &sweep.items {
            index.insert(item.id.as_str(), item.index);
            if items.insert(item.index, item.clone()).is_some_and(|other| other != *item) {
                return Err(differs(format!("item {}", item.id)));
            }
        }
        for row in &sweep.rows {
            let Some(&at) = index.get(row.item.as_str()) else { continue };
            if row.status == RowStatus::Missing {
                continue;
            }
            let key = (at, row.arm.clone());
            match rows.get(&key) {
                Some((other, kept)) if settled(kept) != settled(row) => match prefer {
                    None => conflicts.push(conflict(&sweeps[*other], kept, sweep, row)),
                    Some(how) if counts(how, (&sweeps[*other], kept), (sweep, row)) => {
                        rows.insert(key, (place, row.clone()));
                    }
                    Some(_) => {}
                },
                Some(_) => {}
                None => {
                    rows.insert(key, (place, row.clone()));
                }
            }
        }
    }
    if !conflicts.is_empty() {
        return Err(MergeError::Conflicts(conflicts));
    }
    merged.parts = parts(sweeps, &rows);
    merged.rows.clear();
    for (at, item) in &items {
        for arm in &merged.arms {
            let row = rows.remove(&(*at, arm.id.clone())).map(|(_, row)| row);
            let missing = || {
                let reason = "none of the merged sweeps has it".to_owned();
                without_result(&item.id, arm, RowStatus::Missing, reason)
            };
            merged.rows.push(row.unwrap_or_else(missing));
        }
    }
    merged.items = items.into_values().collect();
    merged.limit =
        sweeps.iter().filter_map(|sweep| sweep.limit.clone()).min_by(|a, b| a.points.total_cmp(&b.points));
    summary::summarise(&mut merged);
    Ok(merged)
}

/// Whether two sweeps ask the same.
fn check(first: &Sweep, other: &Sweep) -> Result<(), MergeError> {
    let name = |sweep: &Sweep| {
        let names: Vec<String> = sweep.corpora.iter().map(|c| format!("{} {}", c.name, c.sha256)).collect();
        names.join(", ")
    };
    if name(first) != name(other) {
        return Err(differs("the corpora".to_owned(), first, other));
    }
    if first.corpora != other.corpora {
        return Err(differs("the choice of items".to_owned(), first, other));
    }
    // Threads may differ between machines.
    let threads = first.settings.threads;
    if first.settings != (super::result::Settings { threads, ..other.settings.clone() }) {
        return Err(differs("the settings".to_owned(), first, other));
    }
    Ok(())
}

fn differs(field: String, first: &Sweep, other: &Sweep) -> MergeError {
    MergeError::Differs { field, first: first.run.name.clone(), other: other.run.name.clone() }
}

/// Adds an arm, or what a sweep knows more of one that is there.
fn add_arm(arms: &mut Vec<Arm>, arm: &Arm) -> Result<(), String> {
    let Some(same) = arms.iter_mut().find(|other| other.id == arm.id) else {
        arms.push(arm.clone());
        return Ok(());
    };
    // A reference of one sweep may be asked for in another, and only then has references itself.
    if arm.declared && !same.declared {
        same.declared = true;
        same.pairings.clone_from(&arm.pairings);
    } else if arm.declared && same.pairings != arm.pairings {
        return Err(format!("what arm {} is held against", arm.id));
    }
    Ok(())
}

/// A row without what may differ between two runs of the same.
fn settled(row: &Row) -> String {
    let row = Row { seconds: 0.0, forced_seconds: 0.0, retried: None, ..row.clone() };
    // As text, in which a NaN is equal to itself.
    serde_json::to_string(&row).expect("a row is plain data")
}

fn conflict(first: &Sweep, a: &Row, other: &Sweep, b: &Row) -> String {
    let told = |sweep: &Sweep, row: &Row| {
        let text = row.answer.as_ref().map(|answer| format!(" {:?}", answer.text)).unwrap_or_default();
        format!("{}: {}{text}", sweep.run.name, row.status)
    };
    format!("{} on {}: {}; {}", a.item, a.arm, told(first, a), told(other, b))
}

/// Whether `new` counts and not `old`.
fn counts(how: Prefer, old: (&Sweep, &Row), new: (&Sweep, &Row)) -> bool {
    match how {
        Prefer::Newest => new.0.run.started > old.0.run.started,
        Prefer::Worst => badness(new.1) > badness(old.1),
    }
}

/// How bad a row is: whether it lacks a result, and its worst KL.
fn badness(row: &Row) -> (bool, u64) {
    let figures = row.against.iter().filter_map(|against| Some(against.logits.as_ref()?.kl_max));
    // Of floats that are not negative the bits have the order of the values, and NaN is the largest.
    let worst = figures.map(|kl| kl.abs().to_bits()).max().unwrap_or(0);
    (row.status != RowStatus::Done, worst)
}

/// The sweeps that were merged, with how many rows are from each.
fn parts(sweeps: &[Sweep], rows: &BTreeMap<(u64, CellId), (usize, Row)>) -> Vec<SweepPart> {
    let of = |(place, sweep): (usize, &Sweep)| SweepPart {
        run: sweep.run.clone(),
        environment: sweep.environment.clone(),
        rows: rows.values().filter(|(from, _)| *from == place).count() as u64,
    };
    sweeps.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests;
