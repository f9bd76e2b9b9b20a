//! Limits of a worker's memory, where the system offers them.
//!
//! On Linux `RLIMIT_DATA` is set: private memory that can be written. Address space (`RLIMIT_AS`) would count model files
//! that are mapped and the ranges that GPU drivers reserve and never fill. Memory of a device is not counted.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, written as `512MiB` or `4GiB`; at least one MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MemoryLimit(u64);

impl MemoryLimit {
    /// The number of bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = "a size such as 512MiB or 4GiB is wanted, of at least 1MiB";
        let size: bytesize::ByteSize = text.parse().map_err(|_| format!("`{text}`: {wanted}"))?;
        if size.as_u64() < 1 << 20 {
            return Err(format!("`{text}`: {wanted}"));
        }
        Ok(Self(size.as_u64()))
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0)
    }
}

impl TryFrom<String> for MemoryLimit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<MemoryLimit> for String {
    fn from(limit: MemoryLimit) -> Self {
        limit.to_string()
    }
}

/// Whether this system offers a limit.
pub const OFFERED: bool = cfg!(target_os = "linux");

/// Limits the memory of this process.
///
/// # Errors
/// Where the system refuses, or offers no limit.
#[cfg(target_os = "linux")]
pub(super) fn limit(bytes: u64) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::Data, limit).map_err(|error| format!("a memory limit of {bytes} bytes: {error}"))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn limit(_: u64) -> Result<(), String> {
    Err("this system offers no limit of memory".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let bytes = |text: &str| text.parse::<MemoryLimit>().map(MemoryLimit::bytes);
        assert_eq!(bytes("4GiB"), Ok(4 << 30));
        assert_eq!(bytes("512 MiB"), Ok(512 << 20));
        assert_eq!(bytes("2GB"), Ok(2_000_000_000));
        for text in ["", "many", "1023KiB", "-4GiB", "0", "4 gibibananas"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        let limit: MemoryLimit = "4GiB".parse().unwrap();
        assert_eq!(limit.to_string().parse(), Ok(limit));
    }
}
