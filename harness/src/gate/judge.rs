//! Declarations against what cells did.
//!
//! Several declarations may match one cell, and their order never matters: everything that is wrong must be forgiven by
//! every declaration that is about it (so of two bounds the smaller one counts) and by one at least, and every
//! declaration must still find something. An expired declaration counts as absent.

use super::Expectation;
use super::declared::{Declaration, Declared, Found, GateUse, joined};
use super::outcome::Outcome;
use crate::report::{Cell, Report};
use crate::verdict::Status;

/// Judges every cell of `report` under `expectations` and says what they did.
pub(super) fn apply(expectations: &[Expectation], file: &str, report: &mut Report, today: &str) -> GateUse {
    let mut used = vec![false; expectations.len()];
    let environment = &report.environment;
    for cell in &mut report.cells {
        if let Some(Found { status, reason }) = cell.found.take() {
            (cell.status, cell.reason) = (status, reason);
        }
        cell.declared = None;
        let found = Found { status: cell.status, reason: cell.reason.clone() };
        let all = expectations.iter().zip(&mut used).filter(|(e, _)| e.selector.matches(cell, environment));
        let (mut matching, mut expired) = (Vec::new(), Vec::new());
        for (expectation, used) in all {
            *used = true;
            if expectation.expired(today) { &mut expired } else { &mut matching }.push(expectation);
        }
        judge(cell, &matching, file);
        if !(cell.status.is_good() || cell.is_as_declared()) {
            let mut places: Vec<String> = expired.iter().map(|e| declaration(e, file).place).collect();
            places.sort();
            if !places.is_empty() {
                cell.reason = format!("{}; a declaration has expired: {}", cell.reason, places.join(", "));
            }
        }
        cell.found = Some(found).filter(|found| (found.status, &found.reason) != (cell.status, &cell.reason));
    }
    let told = |of: &dyn Fn(&Expectation, bool) -> bool| {
        let chosen = expectations.iter().zip(&used).filter(|(e, used)| of(e, **used));
        sorted(chosen.map(|(expectation, _)| declaration(expectation, file)))
    };
    GateUse {
        file: file.to_owned(),
        whole: report.gate.as_ref().is_some_and(|before| before.whole),
        unused: told(&|expectation, used| !used && !expectation.expired(today)),
        expired: told(&|expectation, _| expectation.expired(today)),
    }
}

fn declaration(expectation: &Expectation, file: &str) -> Declaration {
    Declaration {
        expected: expectation.outcome.words(),
        reason: expectation.reason.clone(),
        link: expectation.link.clone(),
        expires: expectation.expires.clone(),
        place: format!("{file}:{}", expectation.line),
    }
}

fn sorted(declarations: impl Iterator<Item = Declaration>) -> Vec<Declaration> {
    let mut all: Vec<Declaration> = declarations.collect();
    all.sort();
    all
}

/// Judges one cell under the declarations that match it.
fn judge(cell: &mut Cell, matching: &[&Expectation], file: &str) {
    // What did not run is neither expected nor unexpected.
    if matching.is_empty() || cell.status == Status::Missing {
        return;
    }
    let found = |outcome: &Outcome| {
        outcome.is_end_of(cell) || cell.findings.iter().any(|finding| outcome.is_about(finding, cell))
    };
    let unmet: Vec<&Expectation> = matching.iter().copied().filter(|e| !found(&e.outcome)).collect();
    let wrong = !cell.status.is_good();
    let forgiven = forgiven(cell, matching);
    let told = |of: &[&Expectation]| sorted(of.iter().map(|e| declaration(e, file)));
    let declarations = told(matching);
    let declared = joined(&declarations);
    let holds = wrong && forgiven && unmet.is_empty();
    match (wrong, forgiven, unmet.is_empty()) {
        // Unsupported is not a failure that was expected; it stays what it is, with its proof.
        (true, true, true) if cell.status == Status::Unsupported => {}
        (true, true, true) => {
            cell.status = Status::Expected;
            cell.reason = format!("as declared ({declared}): {}", cell.reason);
        }
        (true, false, _) => cell.reason = format!("beyond what is declared ({declared}): {}", cell.reason),
        (_, _, false) => {
            cell.status = Status::UnexpectedPass;
            let before = if cell.reason.is_empty() { String::new() } else { format!("; {}", cell.reason) };
            cell.reason = format!("no longer as declared ({}){before}", joined(&told(&unmet)));
        }
        (false, _, true) => {}
    }
    cell.declared = Some(Declared { holds, declarations });
}

/// Whether everything that is wrong with a cell is declared and within its bounds.
fn forgiven(cell: &Cell, matching: &[&Expectation]) -> bool {
    let outcomes = || matching.iter().map(|expectation| &expectation.outcome);
    if matches!(cell.status, Status::Diverged | Status::Fallback) {
        // A cell that is red without a finding is red for a reason that nothing here knows.
        return !cell.findings.is_empty()
            && cell.findings.iter().all(|finding| {
                outcomes().any(|outcome| outcome.forgives(finding, cell))
                    && outcomes()
                        .all(|outcome| !outcome.is_about(finding, cell) || outcome.forgives(finding, cell))
            });
    }
    // It ended some other way; that another arm did is nobody's declaration.
    cell.findings.is_empty() && outcomes().any(|outcome| outcome.is_end_of(cell))
}
