//! What is looked for: the question that a trial answers with good, bad or skip.

use super::search::Outcome;
use super::trial::{Change, Trial};
use crate::report::scientific;
use crate::verdict::Status;
use std::fmt;
use std::str::FromStr;

/// The question. A figure is bad where it is not within its limit, so a NaN is bad.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Until {
    /// The cell does not pass: it diverged, fell back, crashed, or took too long or too much memory.
    Verdict,
    /// Logits NMSE against the reference of the same build is over a limit.
    Nmse(f64),
    /// K/V NMSE of the worst layer is over a limit.
    Kv(f64),
    /// Logits NMSE against the oracle is over a limit.
    Oracle(f64),
    /// Logits NMSE against the same device of the good end is over a limit.
    Change(f64),
    /// The tokens are not those of the good end: those of the free run, or each row's top token.
    Greedy,
    /// The worker crashes, takes too long or too much memory; figures do not matter.
    Crash,
    /// Computing takes more than so many times as long as on the good end.
    Speed(f64),
}

impl Until {
    /// Whether it asks for a difference from the good end.
    #[must_use]
    pub fn is_relative(self) -> bool {
        matches!(self, Self::Change(_) | Self::Greedy | Self::Speed(_))
    }

    /// What a trial answers, with the reason. `good` is the trial of the good end.
    #[must_use]
    pub fn judge(self, trial: &Trial, good: Option<&Trial>) -> (Outcome, String) {
        if let Some(why) = &trial.unusable {
            return (Outcome::Skip, why.clone());
        }
        let Some(status) = trial.status else { return (Outcome::Skip, "nothing was run".to_owned()) };
        let told =
            if trial.reason.is_empty() { status.to_string() } else { format!("{status}: {}", trial.reason) };
        let died = matches!(status, Status::Crashed | Status::Timeout | Status::OutOfMemory);
        match status {
            // What a build lacks says nothing of what it computes.
            Status::Unsupported | Status::Missing => return (Outcome::Skip, told),
            _ if self == Self::Crash => {
                return (if died { Outcome::Bad } else { Outcome::Good }, told);
            }
            _ if self == Self::Verdict => {
                return (if status.is_good() { Outcome::Good } else { Outcome::Bad }, told);
            }
            _ if died => return (Outcome::Skip, told),
            _ => {}
        }
        if let (true, Some(change)) = (matches!(self, Self::Change(_) | Self::Greedy), &trial.against_good)
            && let Some(why) = &change.why
        {
            return (Outcome::Bad, format!("not to be compared with the good end: {why}"));
        }
        if self == Self::Greedy {
            let Some(change) = &trial.against_good else {
                return (Outcome::Skip, "nothing to compare its tokens with".to_owned());
            };
            let outcome = if change.is_other_text() { Outcome::Bad } else { Outcome::Good };
            return (outcome, tokens(change));
        }
        let (Some(figure), Some(limit)) = (self.figure(trial, good), self.limit()) else {
            return (Outcome::Skip, format!("has no figure for `{self}` ({told})"));
        };
        let (outcome, sign) = if figure <= limit { (Outcome::Good, "<=") } else { (Outcome::Bad, ">") };
        (outcome, format!("{} {} {sign} {limit:e}", self.what(), scientific(figure)))
    }

    /// The figure that it looks at, which plots show.
    #[must_use]
    pub fn figure(self, trial: &Trial, good: Option<&Trial>) -> Option<f64> {
        match self {
            Self::Verdict | Self::Nmse(_) | Self::Crash => trial.logits_nmse,
            Self::Kv(_) => trial.kv_nmse,
            Self::Oracle(_) => trial.oracle_nmse,
            Self::Change(_) | Self::Greedy => trial.against_good.as_ref().and_then(|change| change.nmse),
            Self::Speed(_) => Some(trial.compute_seconds? / good?.compute_seconds?),
        }
    }

    /// What its figure is called.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::Verdict | Self::Nmse(_) | Self::Crash => "logits NMSE",
            Self::Kv(_) => "K/V NMSE",
            Self::Oracle(_) => "logits NMSE against the oracle",
            Self::Change(_) | Self::Greedy => "logits NMSE against the good end",
            Self::Speed(_) => "times the good end's seconds",
        }
    }

    /// The limit of its figure.
    #[must_use]
    pub fn limit(self) -> Option<f64> {
        match self {
            Self::Nmse(limit)
            | Self::Kv(limit)
            | Self::Oracle(limit)
            | Self::Change(limit)
            | Self::Speed(limit) => Some(limit),
            Self::Verdict | Self::Greedy | Self::Crash => None,
        }
    }
}

fn tokens(change: &Change) -> String {
    match change.same_tokens {
        Some(true) => "the free run gives the good end's tokens".to_owned(),
        Some(false) => "the free run gives other tokens than the good end".to_owned(),
        None => format!("{} rows have another top token than on the good end", change.mismatches),
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Verdict => "verdict",
            Self::Nmse(_) => "nmse",
            Self::Kv(_) => "kv",
            Self::Oracle(_) => "oracle",
            Self::Change(_) => "change",
            Self::Greedy => "greedy",
            Self::Crash => "crash",
            Self::Speed(_) => "speed",
        };
        f.write_str(name)?;
        self.limit().map_or(Ok(()), |limit| write!(f, ">{limit:?}"))
    }
}

/// A question that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is none of verdict, crash, greedy, nmse>LIMIT, kv>LIMIT, oracle>LIMIT, change>LIMIT, speed>RATIO, \
     where a limit is 0 or more and a ratio is over 0"
)]
pub struct NotAQuestion(String);

impl FromStr for Until {
    type Err = NotAQuestion;

    fn from_str(text: &str) -> Result<Self, NotAQuestion> {
        let wrong = || NotAQuestion(text.to_owned());
        let Some((name, limit)) = text.split_once('>') else {
            return match text {
                "verdict" => Ok(Self::Verdict),
                "greedy" => Ok(Self::Greedy),
                "crash" => Ok(Self::Crash),
                _ => Err(wrong()),
            };
        };
        let limit = limit.trim().parse::<f64>().ok().filter(|limit| limit.is_finite() && *limit >= 0.0);
        let limit = limit.ok_or_else(wrong)?;
        match name.trim() {
            "nmse" => Ok(Self::Nmse(limit)),
            "kv" => Ok(Self::Kv(limit)),
            "oracle" => Ok(Self::Oracle(limit)),
            "change" => Ok(Self::Change(limit)),
            "speed" if limit > 0.0 => Ok(Self::Speed(limit)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(status: Status, nmse: Option<f64>) -> Trial {
        Trial { status: Some(status), logits_nmse: nmse, ..Trial::default() }
    }

    fn outcome(until: &str, trial: &Trial, good: Option<&Trial>) -> Outcome {
        until.parse::<Until>().unwrap().judge(trial, good).0
    }

    #[test]
    fn questions_are_read_and_written() {
        for text in
            ["verdict", "greedy", "crash", "nmse>0.0001", "kv>0.01", "oracle>1e-9", "change>0.0", "speed>1.5"]
        {
            assert_eq!(text.parse::<Until>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "Verdict",
            "nmse",
            "nmse>",
            "nmse>x",
            "nmse>-1",
            "nmse>nan",
            "nmse>inf",
            "speed>0",
            "verdict>1",
        ] {
            let error = text.parse::<Until>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}` is none of verdict")), "{error}");
        }
    }

    #[test]
    fn a_verdict_counts_a_crash_and_skips_what_a_build_lacks() {
        use Outcome::{Bad, Good, Skip};
        for (status, verdict, crash, nmse) in [
            (Status::Pass, Good, Good, Good),
            (Status::Expected, Good, Good, Good),
            (Status::Diverged, Bad, Good, Good),
            (Status::Fallback, Bad, Good, Good),
            (Status::Crashed, Bad, Bad, Skip),
            (Status::Timeout, Bad, Bad, Skip),
            (Status::OutOfMemory, Bad, Bad, Skip),
            (Status::Unsupported, Skip, Skip, Skip),
            (Status::Missing, Skip, Skip, Skip),
        ] {
            let trial = trial(status, Some(1e-6));
            let found = ["verdict", "crash", "nmse>1e-5"].map(|until| outcome(until, &trial, None));
            assert_eq!(found, [verdict, crash, nmse], "{status}");
        }
        let (outcome, why) = Until::Verdict.judge(&Trial::unusable("a", "no such library"), None);
        assert_eq!((outcome, why.as_str()), (Skip, "no such library"));
    }

    #[test]
    fn a_nan_is_over_every_limit_and_no_figure_is_a_skip() {
        assert_eq!(outcome("nmse>1e-5", &trial(Status::Diverged, Some(f64::NAN)), None), Outcome::Bad);
        assert_eq!(outcome("nmse>1e-5", &trial(Status::Diverged, Some(2e-5)), None), Outcome::Bad);
        assert_eq!(outcome("nmse>1e-5", &trial(Status::Diverged, Some(1e-5)), None), Outcome::Good);
        assert_eq!(outcome("nmse>1e-5", &trial(Status::Diverged, None), None), Outcome::Skip);
        assert_eq!(outcome("oracle>1e-5", &trial(Status::Pass, Some(0.0)), None), Outcome::Skip);
    }

    #[test]
    fn what_asks_for_a_difference_looks_at_the_good_end() {
        let timed = |seconds| Trial { compute_seconds: Some(seconds), ..trial(Status::Pass, None) };
        let good = timed(2.0);
        assert_eq!(outcome("speed>1.5", &timed(2.9), Some(&good)), Outcome::Good);
        assert_eq!(outcome("speed>1.5", &timed(3.1), Some(&good)), Outcome::Bad);
        assert_eq!(outcome("speed>1.5", &timed(3.1), None), Outcome::Skip);
        let changed = |nmse, same_tokens, why: Option<&str>| Trial {
            against_good: Some(Change {
                from: "a".to_owned(),
                nmse,
                kv_nmse: None,
                mismatches: 0,
                same_tokens,
                why: why.map(str::to_owned),
            }),
            ..trial(Status::Pass, None)
        };
        assert_eq!(outcome("change>0", &changed(Some(0.0), None, None), None), Outcome::Good);
        assert_eq!(outcome("change>0", &changed(Some(1e-30), None, None), None), Outcome::Bad);
        assert_eq!(outcome("change>1", &changed(None, None, Some("tokens differ")), None), Outcome::Bad);
        assert_eq!(outcome("greedy", &changed(Some(0.1), Some(true), None), None), Outcome::Good);
        assert_eq!(outcome("greedy", &changed(Some(0.0), Some(false), None), None), Outcome::Bad);
        assert_eq!(outcome("greedy", &trial(Status::Pass, None), None), Outcome::Skip);
        assert!("greedy".parse::<Until>().unwrap().is_relative());
    }
}
