//! Exit codes: one table, printed by `--help`.

use super::Status;

/// What the process ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// Every declared cell passed or was expected.
    Success = 0,
    /// A cell diverged, fell back, or passed unexpectedly.
    Diverged = 1,
    /// Usage, configuration or input file.
    Usage = 2,
    /// Nothing was compared, or not all that was declared.
    Incomplete = 3,
    /// No such build or device.
    Environment = 4,
    /// A worker crashed, timed out or ran out of memory.
    Worker = 5,
}

impl ExitCode {
    /// Every code.
    pub const ALL: [Self; 6] =
        [Self::Success, Self::Diverged, Self::Usage, Self::Incomplete, Self::Environment, Self::Worker];

    /// Where several hold, the first of these wins.
    pub const PRECEDENCE: [Self; 6] =
        [Self::Usage, Self::Environment, Self::Worker, Self::Incomplete, Self::Diverged, Self::Success];

    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What it means.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Success => "every declared cell passed or was expected",
            Self::Diverged => "a cell diverged, fell back to the CPU, or passed unexpectedly",
            Self::Usage => "usage, configuration or input file",
            Self::Incomplete => {
                "nothing was compared, a declared cell is missing, or an undeclared one is unsupported"
            }
            Self::Environment => "no such ggml build or device, or no space left",
            Self::Worker => "a worker crashed, timed out or ran out of memory",
        }
    }

    /// The table as `--help` prints it.
    pub fn table() -> String {
        let lines = Self::ALL.map(|code| format!("  {}  {}\n", code.code(), code.meaning()));
        let order = Self::PRECEDENCE.map(|code| code.code().to_string())[..5].join(", ");
        format!("Exit codes:\n{}Where several hold, the first of {order} counts.\n", lines.concat())
    }

    /// The one that counts of several; success when there are none.
    pub fn worst(codes: impl IntoIterator<Item = Self>) -> Self {
        let rank = |code: &Self| Self::PRECEDENCE.iter().position(|p| p == code);
        codes.into_iter().min_by_key(rank).unwrap_or(Self::Success)
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.code())
    }
}

/// What the exit code needs to know of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its status.
    pub status: Status,
    /// Whether the gate declares this outcome.
    pub declared: bool,
    /// Whether figures were compared.
    pub compared: bool,
}

impl Outcome {
    /// The code that this cell alone asks for.
    fn code(self) -> ExitCode {
        match self.status {
            Status::Pass | Status::Expected => ExitCode::Success,
            Status::Unsupported if self.declared => ExitCode::Success,
            Status::Unsupported | Status::Missing => ExitCode::Incomplete,
            Status::Diverged | Status::Fallback | Status::UnexpectedPass => ExitCode::Diverged,
            Status::Crashed | Status::Timeout | Status::OutOfMemory => ExitCode::Worker,
        }
    }
}

/// The exit code of a run. A run that compared nothing is incomplete, whatever its cells say.
pub fn exit_code(outcomes: impl IntoIterator<Item = Outcome>) -> ExitCode {
    let outcomes: Vec<Outcome> = outcomes.into_iter().collect();
    let compared = outcomes.iter().any(|outcome| outcome.compared);
    let nothing = (!compared).then_some(ExitCode::Incomplete);
    ExitCode::worst(outcomes.into_iter().map(Outcome::code).chain(nothing))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: Status) -> Outcome {
        Outcome { status, declared: false, compared: true }
    }

    fn code(statuses: &[Status]) -> u8 {
        exit_code(statuses.iter().copied().map(outcome)).code()
    }

    #[test]
    fn each_status_alone() {
        let expected = |status| match status {
            Status::Pass | Status::Expected => 0,
            Status::Diverged | Status::Fallback | Status::UnexpectedPass => 1,
            Status::Unsupported | Status::Missing => 3,
            Status::Crashed | Status::Timeout | Status::OutOfMemory => 5,
        };
        for &status in Status::ALL {
            assert_eq!(code(&[Status::Pass, status]), expected(status), "{status}");
        }
    }

    #[test]
    fn precedence() {
        assert_eq!(code(&[Status::Diverged, Status::Missing]), 3);
        assert_eq!(code(&[Status::Missing, Status::Crashed, Status::Diverged]), 5);
        use ExitCode as E;
        assert_eq!(E::worst(E::ALL), E::Usage);
        assert_eq!(E::worst([E::Worker, E::Environment]), E::Environment);
    }

    #[test]
    fn comparing_nothing_is_not_success() {
        assert_eq!(exit_code([]).code(), 3);
        let not_compared = Outcome { compared: false, ..outcome(Status::Expected) };
        assert_eq!(exit_code([not_compared]).code(), 3);
        assert_eq!(exit_code([not_compared, outcome(Status::Pass)]).code(), 0);
    }

    #[test]
    fn unsupported_is_red_unless_declared() {
        let unsupported = Outcome { compared: false, ..outcome(Status::Unsupported) };
        assert_eq!(exit_code([unsupported, outcome(Status::Pass)]).code(), 3);
        let declared = Outcome { declared: true, ..unsupported };
        assert_eq!(exit_code([declared, outcome(Status::Pass)]).code(), 0);
    }

    #[test]
    fn the_table_names_every_code_and_the_order() {
        let table = ExitCode::table();
        for code in ExitCode::ALL {
            assert!(table.contains(&format!("  {}  {}", code.code(), code.meaning())));
        }
        assert!(table.contains("2, 4, 5, 3, 1"));
    }
}
