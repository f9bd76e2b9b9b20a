//! Several reports as one: shards of one matrix, or runs of several machines.
//!
//! Cells keep every figure. What became of a cell is its status and reason, figures, limits, attribution and checks,
//! placement and text; times, memory and the command to run it again may differ between two runs of the same cell.

use super::model::{Cell, Environment, Part, Report, Run};
use crate::gate::GateUse;
use crate::named::named_enum;
use crate::plan::{CellId, Shard};
use crate::verdict::{ExitCode, Outcome, Status, exit_code};
use std::collections::{BTreeMap, BTreeSet};

named_enum! {
    /// Which of several reports of a cell counts, where they differ.
    pub enum Prefer as "prefer" {
        /// That of the run that began last.
        Newest = "newest",
        /// That which asks for the worse exit code, then the one with the larger error.
        Worst = "worst",
    }
}

/// A cell of which several reports say different things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The cell.
    pub id: CellId,
    /// For each report that has it: the name of the run, its status and its logits NMSE.
    pub told: Vec<String>,
}

/// Reports that cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// There is nothing to merge.
    #[error("no report to merge")]
    Nothing,
    /// Cells of which the reports say different things.
    #[error(
        "{} cells differ between the reports (--prefer newest or --prefer worst decides):\n{}", .0.len(), list(.0)
    )]
    Conflicts(Vec<Conflict>),
}

fn list(conflicts: &[Conflict]) -> String {
    let line = |c: &Conflict| format!("  {}: {}", c.id, c.told.join("; "));
    conflicts.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Puts `.label` behind the name of the build in every id of a report, so that the cells of machines which name their
/// devices alike stand side by side.
pub fn label(report: &mut Report, label: &str) {
    let name = |build: &str| format!("{build}.{label}");
    let relabel = |id: &mut CellId| id.build = name(&id.build);
    for cell in &mut report.cells {
        relabel(&mut cell.id);
        cell.build = name(&cell.build);
        // A reference that is no cell is a file.
        if let Some(Ok(mut reference)) = cell.reference.as_ref().map(|text| text.parse::<CellId>()) {
            relabel(&mut reference);
            cell.reference = Some(reference.to_string());
        }
    }
    report.run.shard.iter_mut().flat_map(|shard| &mut shard.declared).for_each(relabel);
    report.parts.iter_mut().flat_map(|part| &mut part.cells).for_each(relabel);
    report.environment.builds.iter_mut().for_each(|build| build.name = name(&build.name));
}

/// What came of merging.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The report.
    pub report: Report,
    /// Shards that are not among the reports, each with how many cells it was to run.
    pub missing: Vec<(Shard, usize)>,
}

/// Merges reports; `run` is what the report says of the merging, its time excepted, which is the sum of all.
///
/// Cells come in the order in which their matrix declared them. A cell of a shard that is not there is `missing`. A
/// cell that one report lists as not run and another has run is the latter.
///
/// # Errors
/// No reports, or cells of which they say different things while `prefer` is not given.
pub fn merge(reports: &[Report], run: Run, prefer: Option<Prefer>) -> Result<Merged, MergeError> {
    if reports.is_empty() {
        return Err(MergeError::Nothing);
    }
    let mut order: Vec<CellId> = Vec::new();
    let mut found: BTreeMap<&CellId, Vec<(&Report, &Cell)>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for report in reports {
        let declared = report.run.shard.iter().flat_map(|shard| &shard.declared);
        for id in declared.chain(report.cells.iter().map(|cell| &cell.id)) {
            if seen.insert(id) {
                order.push(id.clone());
            }
        }
        for cell in &report.cells {
            found.entry(&cell.id).or_default().push((report, cell));
        }
    }
    let missing = missing_shards(reports);
    let mut conflicts = Vec::new();
    let mut cells = Vec::new();
    // Where the cell that is kept came from, by run.
    let mut from: BTreeMap<usize, Vec<CellId>> = BTreeMap::new();
    for id in &order {
        let Some(told) = found.get(id) else {
            cells.push(not_run(id, &missing));
            continue;
        };
        let ran: Vec<_> = told.iter().copied().filter(|(_, cell)| !cell.has_not_run()).collect();
        let told = if ran.is_empty() { told.clone() } else { ran };
        let (report, cell) = match prefer {
            Some(prefer) => preferred(&told, prefer),
            None if differ(&told) => {
                conflicts
                    .push(Conflict { id: id.clone(), told: told.iter().map(|(r, c)| tell(r, c)).collect() });
                continue;
            }
            // A cell that took a second try is no less a finding for having gone well elsewhere.
            None => told.iter().copied().find(|(_, cell)| cell.retried.is_some()).unwrap_or(told[0]),
        };
        let at = reports.iter().position(|other| std::ptr::eq(other, report)).unwrap_or_default();
        from.entry(at).or_default().push(id.clone());
        cells.push(cell.clone());
    }
    if !conflicts.is_empty() {
        return Err(MergeError::Conflicts(conflicts));
    }
    let mut environment = Environment::default();
    reports.iter().for_each(|report| environment.merge(&report.environment));
    let seconds = reports.iter().map(|report| report.run.seconds).sum();
    let mut merged = Report::new(Run { seconds, ..run }, environment, &order, cells);
    // Each cell was held against the gate of its own run.
    merged.gate = GateUse::merged(reports.iter().filter_map(|report| report.gate.as_ref()));
    merged.parts =
        reports.iter().enumerate().flat_map(|(at, report)| parts(report, from.remove(&at))).collect();
    Ok(Merged { report: merged, missing: missing.into_iter().map(|m| (m.shard, m.cells.len())).collect() })
}

/// The runs that a report is of, with those of its cells that count: one, or several where it is merged itself.
fn parts(report: &Report, cells: Option<Vec<CellId>>) -> Vec<Part> {
    let cells = cells.unwrap_or_default();
    if report.parts.is_empty() {
        let mut run = report.run.clone();
        // The whole matrix stands in the merged report already.
        let shard = run.shard.take().map(|shard| shard.part);
        return vec![Part { run, shard, environment: report.environment.clone(), cells }];
    }
    let kept = |part: &Part| Part {
        cells: part.cells.iter().filter(|id| cells.contains(id)).cloned().collect(),
        ..part.clone()
    };
    report.parts.iter().map(kept).collect()
}

/// A shard that is not among the reports.
struct MissingShard {
    shard: Shard,
    cells: Vec<CellId>,
}

/// For each matrix of which there are shards: those that are not there.
fn missing_shards(reports: &[Report]) -> Vec<MissingShard> {
    let mut matrices: Vec<(&[CellId], u32, BTreeSet<u32>)> = Vec::new();
    for shard in reports.iter().filter_map(|report| report.run.shard.as_ref()) {
        let same = |m: &&mut (&[CellId], u32, BTreeSet<u32>)| m.0 == shard.declared && m.1 == shard.part.of;
        match matrices.iter_mut().find(same) {
            Some((_, _, there)) => {
                there.insert(shard.part.index);
            }
            None => matrices.push((&shard.declared, shard.part.of, BTreeSet::from([shard.part.index]))),
        }
    }
    let missing = matrices.into_iter().flat_map(|(declared, of, there)| {
        (1..=of).filter(move |index| !there.contains(index)).map(move |index| {
            let shard = Shard { index, of };
            MissingShard { shard, cells: shard.pick(declared) }
        })
    });
    missing.collect()
}

/// The cell that no report has.
fn not_run(id: &CellId, missing: &[MissingShard]) -> Cell {
    let mut cell = Cell::new(id.clone());
    let shard = missing.iter().find(|missing| missing.cells.contains(id));
    cell.reason = match shard {
        Some(missing) => format!("shard {} is not among the merged reports", missing.shard),
        None => "declared by a shard, but not in its report".to_owned(),
    };
    cell
}

/// Whether the reports of a cell say different things.
fn differ(told: &[(&Report, &Cell)]) -> bool {
    let outcomes: Vec<_> = told.iter().map(|(_, cell)| outcome(cell)).collect();
    outcomes.windows(2).any(|pair| pair[0] != pair[1])
}

/// A cell without what differs from run to run. As JSON, where a NaN is equal to itself.
fn outcome(cell: &Cell) -> serde_json::Value {
    let stripped = Cell {
        timings: BTreeMap::new(),
        peak_rss_bytes: None,
        retried: None,
        rerun: String::new(),
        ..cell.clone()
    };
    serde_json::to_value(stripped).expect("a cell has string keys and no foreign types")
}

fn tell(report: &Report, cell: &Cell) -> String {
    let nmse = cell.metrics.as_ref().map(|m| format!(" (logits NMSE {:.1e})", m.logits.overall));
    format!("{} in {}{}", cell.status, report.run.name, nmse.unwrap_or_default())
}

/// The report of a cell that counts; the first of several that are equal in this.
fn preferred<'a>(told: &[(&'a Report, &'a Cell)], prefer: Prefer) -> (&'a Report, &'a Cell) {
    let badness = |cell: &Cell| {
        // Of this cell alone, whether or not it has figures.
        let code = exit_code([Outcome { compared: true, ..cell.outcome() }]);
        let code = ExitCode::PRECEDENCE.iter().rev().position(|other| *other == code);
        // A NaN is worse than any number, and a cell without figures is worse than one that is as red with them.
        let nmse = cell.metrics.as_ref().map_or(f64::INFINITY, |metrics| metrics.logits.overall);
        (code, if nmse.is_nan() { f64::INFINITY } else { nmse })
    };
    let worse = |a: &Cell, b: &Cell| {
        let ((code_a, nmse_a), (code_b, nmse_b)) = (badness(a), badness(b));
        code_a > code_b || (code_a == code_b && nmse_a > nmse_b)
    };
    let mut best = told[0];
    for &(report, cell) in &told[1..] {
        let better = match prefer {
            // RFC 3339 in UTC sorts as text does.
            Prefer::Newest => report.run.started > best.0.run.started,
            Prefer::Worst => worse(cell, best.1),
        };
        if better {
            best = (report, cell);
        }
    }
    best
}

impl Cell {
    /// Whether it was declared and nothing came of it: whatever ran has a reference.
    fn has_not_run(&self) -> bool {
        self.status == Status::Missing && self.reference.is_none() && self.metrics.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::ShardOf;
    use crate::report::{json, markdown};
    use crate::verdict::Verdict;

    fn ids(devices: &[&str]) -> Vec<CellId> {
        let cases = ["m/f32/decode", "m/f32/full", "m/f32/prefill"];
        let cells = cases.iter().flat_map(|case| devices.iter().map(move |d| format!("{case}@b:{d}")));
        cells.map(|id| id.parse().unwrap()).collect()
    }

    fn cell(id: &CellId, status: Status, reason: &str) -> Cell {
        let mut cell = Cell::new(id.clone());
        cell.reference = Some(format!("{}@b:CPU", id.case));
        cell.set_verdict(Verdict::new(status, reason));
        cell
    }

    fn run(name: &str) -> Run {
        Run {
            name: name.to_owned(),
            started: "2026-11-01T00:00:00Z".to_owned(),
            seconds: 1.0,
            ..Run::default()
        }
    }

    fn report(name: &str, cells: Vec<Cell>) -> Report {
        let environment =
            Environment { os: "linux".to_owned(), arch: name.to_owned(), ..Environment::default() };
        Report::new(run(name), environment, &[], cells)
    }

    fn shard(part: &str, declared: &[CellId]) -> Report {
        let part: Shard = part.parse().unwrap();
        let cells = part.pick(declared).iter().map(|id| cell(id, Status::Pass, "")).collect();
        let mut report = report(&format!("shard-{}", part.index), cells);
        report.run.shard = Some(ShardOf { part, declared: declared.to_vec() });
        report
    }

    fn merged(reports: &[Report], prefer: Option<Prefer>) -> Merged {
        merge(reports, run("all"), prefer).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn shards_in_any_order_give_the_declared_matrix() {
        let declared = ids(&["V0", "V1"]);
        let shards = [shard("2/2", &declared), shard("1/2", &declared)];
        let found = merged(&shards, None);
        let order: Vec<CellId> = found.report.cells.iter().map(|cell| cell.id.clone()).collect();
        assert_eq!(order, declared);
        assert!(found.missing.is_empty());
        assert_eq!((found.report.run.seconds, found.report.environment.os.as_str()), (2.0, "linux"));
        assert_eq!(found.report.environment.arch, "shard-2, shard-1");
        // Which run a cell came from stays known, in the file too, and when the report is merged again.
        let again = json::parse(&json::render(&found.report)).unwrap();
        assert_eq!(again, found.report);
        let other = report("other", vec![cell(&ids(&["V2"])[0], Status::Pass, "")]);
        let twice = merged(&[again, other], None).report;
        assert_eq!(twice.part_of(&declared[0]).map(|part| part.run.name.as_str()), Some("shard-1"));
        assert_eq!(twice.part_of(&declared[2]).map(|part| part.run.name.as_str()), Some("shard-2"));
        assert_eq!(twice.parts.len(), 3);
        assert!(markdown::render(&twice).contains("- run shard-2, shard 2/2: 2 cells"));
    }

    #[test]
    fn a_missing_shard_is_named_and_its_cells_are_red() {
        let declared = ids(&["V0"]);
        let two = [shard("1/3", &declared), shard("3/3", &declared)];
        let found = merged(&two, None);
        assert_eq!(found.missing, [("2/3".parse().unwrap(), 1)]);
        assert_eq!(found.report.cells[1].status, Status::Missing);
        assert!(found.report.cells[1].reason.contains("shard 2/3"), "{}", found.report.cells[1].reason);
        assert_eq!(found.report.exit_code(), ExitCode::Incomplete);
        // It fills the gap when it comes later.
        let found = merged(&[found.report, shard("2/3", &declared)], None);
        assert!(found.report.cells.iter().all(|cell| cell.status == Status::Pass));
        // Shards of another matrix do not stand for it.
        let other = ids(&["V0", "V1"]);
        let found = merged(&[shard("1/2", &declared), shard("2/2", &other)], None);
        assert_eq!(found.missing.len(), 2);
        // A shard that lost a cell is no whole one.
        let mut lost = shard("1/1", &declared);
        lost.cells.remove(0);
        assert_eq!(merged(&[lost], None).report.cells[0].status, Status::Missing);
    }

    #[test]
    fn what_is_equal_is_one_and_what_differs_is_an_error_that_lists_it() {
        let id = &ids(&["V0"])[0];
        let a = report("a", vec![cell(id, Status::Pass, "")]);
        let mut slow = cell(id, Status::Pass, "");
        slow.timings.insert("compute".to_owned(), 9.0);
        slow.retried = Some("signal 6".to_owned());
        let found = merged(&[a.clone(), report("slow", vec![slow])], None);
        assert_eq!(found.report.cells.len(), 1);
        assert!(found.report.cells[0].retried.is_some(), "a second try stays a finding");

        let mut b = report("b", vec![cell(id, Status::Diverged, "logits")]);
        let error = merge(&[a.clone(), b.clone()], run("all"), None).unwrap_err().to_string();
        for part in [id.to_string().as_str(), "pass in a", "diverged in b", "--prefer"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let kept = |reports: &[Report], prefer| merged(reports, Some(prefer)).report.cells[0].status;
        assert_eq!(kept(&[a.clone(), b.clone()], Prefer::Worst), Status::Diverged);
        assert_eq!(kept(&[b.clone(), a.clone()], Prefer::Worst), Status::Diverged);
        b.run.started = "2026-10-31T23:59:59Z".to_owned();
        assert_eq!(kept(&[b, a], Prefer::Newest), Status::Pass);
        assert_eq!(merge(&[], run("all"), None), Err(MergeError::Nothing));
    }

    #[test]
    fn a_cell_that_one_machine_did_not_run_is_the_others() {
        let id = &ids(&["V0"])[0];
        let here = report("here", vec![Cell::new(id.clone())]);
        let there = report("there", vec![cell(id, Status::Pass, "")]);
        for reports in [[here.clone(), there.clone()], [there, here]] {
            let found = merged(&reports, None).report;
            assert_eq!(found.cells[0].status, Status::Pass);
            assert_eq!(found.part_of(id).map(|part| part.run.name.as_str()), Some("there"));
        }
    }

    #[test]
    fn labels_keep_machines_apart_that_name_their_devices_alike() {
        let id = &ids(&["V0"])[0];
        let mut a = report("a", vec![cell(id, Status::Pass, "")]);
        let mut b = report("b", vec![cell(id, Status::Diverged, "logits")]);
        label(&mut a, "h100");
        label(&mut b, "mi300");
        let found = merged(&[a, b], None).report;
        let ids: Vec<String> = found.cells.iter().map(|cell| cell.id.to_string()).collect();
        assert_eq!(ids, ["m/f32/decode@b.h100:V0", "m/f32/decode@b.mi300:V0"]);
        assert_eq!(found.cells[1].reference.as_deref(), Some("m/f32/decode@b.mi300:CPU"));
        assert_eq!((found.cells[1].build.as_str(), found.cells[1].status), ("b.mi300", Status::Diverged));
    }
}
