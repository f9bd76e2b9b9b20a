//! The embedded inference runtime.
