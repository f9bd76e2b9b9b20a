//! How a worker died: its signal or exit code, its last words, and what they say of the cause.

use super::causes::{self, Cause};
use crate::verdict::Status;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

/// Lines of a dead worker's standard error that its cell keeps.
const LAST_LINES: usize = 12;
/// The cause is looked for in so many: a backtrace may follow what tells it.
const LINES_READ: usize = 400;

/// How a worker died.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Death {
    /// Why, as far as it is known.
    pub cause: Cause,
    /// What tells the cause: a line of its standard error, or what the system counted.
    pub evidence: String,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its exit code, where no signal did.
    pub exit_code: Option<i32>,
    /// How long it had run.
    pub seconds: f64,
    /// The limit of its memory in bytes, where it had one.
    pub memory_limit: Option<u64>,
    /// The last lines of its standard error.
    pub last_lines: Vec<String>,
}

/// What the parent knows when a worker is gone.
pub(super) struct Remains<'a> {
    pub(super) status: Option<ExitStatus>,
    pub(super) stderr: &'a str,
    pub(super) after: Duration,
    pub(super) memory_limit: Option<u64>,
    /// How often the system's out-of-memory killer struck here meanwhile, where it counts.
    pub(super) oom_kills: Option<u64>,
}

impl Death {
    pub(super) fn of(remains: &Remains<'_>) -> Self {
        let lines: Vec<&str> = remains.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        let signal = remains.status.as_ref().and_then(signal);
        let (cause, evidence) = match (signal, remains.oom_kills) {
            (Some(9), Some(1..)) => {
                (Cause::OutOfMemory, "the system's out-of-memory killer struck meanwhile".to_owned())
            }
            (Some(9), Some(0)) => (Cause::Killed, "the system counts no out-of-memory kill".to_owned()),
            (Some(9), None) => (
                Cause::Killed,
                "by the out-of-memory killer or by hand: the system does not count the former".to_owned(),
            ),
            _ => {
                let read = &lines[lines.len().saturating_sub(LINES_READ)..];
                causes::cause(read).unwrap_or((Cause::Unknown, String::new()))
            }
        };
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        Self {
            cause,
            evidence,
            signal,
            exit_code: remains.status.and_then(|status| status.code()),
            seconds: remains.after.as_secs_f64(),
            memory_limit: remains.memory_limit,
            last_lines: last.iter().map(|line| (*line).to_owned()).collect(),
        }
    }

    /// The status of the cell that it died at.
    #[must_use]
    pub fn status(&self) -> Status {
        if self.cause == Cause::OutOfMemory { Status::OutOfMemory } else { Status::Crashed }
    }

    /// Whether a second worker may do better: not where memory was short or somebody ended the first, which
    /// would come again.
    #[must_use]
    pub fn may_be_chance(&self) -> bool {
        !matches!(self.cause, Cause::OutOfMemory | Cause::Killed)
    }

    /// `signal 6 (SIGABRT)`, `exit code 3`.
    #[must_use]
    pub fn end(&self) -> String {
        match (self.signal, self.exit_code) {
            (Some(signal), _) => match signal_name(signal) {
                Some(name) => format!("signal {signal} ({name})"),
                None => format!("signal {signal}"),
            },
            (None, Some(code)) => format!("exit code {code}"),
            (None, None) => "no exit code".to_owned(),
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker ended with {} after {:.1} s", self.end(), self.seconds)?;
        if self.cause != Cause::Unknown {
            write!(f, ": {}: {}", self.cause, self.evidence)?;
        }
        if let Some(limit) = self.memory_limit {
            write!(f, "; its memory was limited to {}", bytesize::ByteSize::b(limit))?;
        }
        if !self.last_lines.is_empty() {
            write!(f, "; its last words: {}", self.last_lines.join(" | "))?;
        }
        Ok(())
    }
}

/// Signals by the names that gate files may use.
const SIGNALS: [(i32, &str); 10] = [
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    // As Linux numbers it; elsewhere the number alone is told.
    #[cfg(target_os = "linux")]
    (7, "SIGBUS"),
    #[cfg(not(target_os = "linux"))]
    (10, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (11, "SIGSEGV"),
    (13, "SIGPIPE"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
];

fn signal_name(number: i32) -> Option<&'static str> {
    SIGNALS.iter().find(|(n, _)| *n == number).map(|(_, name)| *name)
}

/// The number of a signal by its name.
pub(crate) fn signal_number(name: &str) -> Option<i32> {
    SIGNALS.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
}

#[cfg(unix)]
fn signal(status: &ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(status)
}

#[cfg(not(unix))]
fn signal(_: &ExitStatus) -> Option<i32> {
    None
}

/// How often the out-of-memory killer has struck in this process's control group, where the system counts it.
#[cfg(target_os = "linux")]
pub(super) fn oom_kills() -> Option<u64> {
    let group = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = group.lines().find_map(|line| line.strip_prefix("0::"))?;
    let events = std::fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.events"))
        .or_else(|_| std::fs::read_to_string("/sys/fs/cgroup/memory.events"))
        .ok()?;
    events.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn oom_kills() -> Option<u64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn death(signal: i32, stderr: &str, oom_kills: Option<u64>) -> Death {
        Death::of(&Remains {
            status: Some(ExitStatus::from_raw(signal)),
            stderr,
            after: Duration::from_millis(1500),
            memory_limit: None,
            oom_kills,
        })
    }

    #[test]
    fn an_assertion_is_told_though_a_backtrace_follows() {
        let stderr = format!("a.cpp:12: GGML_ASSERT(x) failed\n{}", "frame\n".repeat(50));
        let found = death(6, &stderr, Some(0));
        assert_eq!((found.cause, found.status()), (Cause::Abort, Status::Crashed));
        assert_eq!(found.last_lines.len(), LAST_LINES);
        let text = found.to_string();
        assert!(
            text.starts_with(
                "the worker ended with signal 6 (SIGABRT) after 1.5 s: ggml aborted: a.cpp:12: "
            )
        );
    }

    #[test]
    fn a_kill_is_out_of_memory_only_where_the_system_counted_one() {
        assert_eq!(death(9, "", Some(2)).status(), Status::OutOfMemory);
        for counted in [Some(0), None] {
            let killed = death(9, "std::bad_alloc", counted);
            assert_eq!((killed.cause, killed.status()), (Cause::Killed, Status::Crashed));
            assert!(!killed.may_be_chance());
        }
        assert!(death(11, "", Some(1)).may_be_chance());
    }
}
