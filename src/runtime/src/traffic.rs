//! Bytes that a session moves between host and device, counted graph by graph. A masked generation computes one
//! graph a step, so the largest graph says what a step moves at most.
//!
//! Inputs that are written before a graph and outputs that are read after it are counted; loading weights is not, nor
//! is what an arm is given to follow another's experts and conditions, nor are copies that the scheduler makes where
//! work falls back to the CPU, which [`Placement::splits`](crate::Placement::splits) tells.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Moved {
    /// Bytes over all graphs.
    pub total: u64,
    /// Bytes of the graph that moved the most.
    pub largest: u64,
}

impl Moved {
    fn add(&mut self, bytes: u64) {
        self.total += bytes;
        self.largest = self.largest.max(bytes);
    }
}

/// What went to the device and came from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// Graphs computed.
    pub graphs: u64,
    /// Inputs: tokens, positions, masks, indices.
    pub to_device: Moved,
    /// Outputs: logits, and keys and values where the caller asked to see them.
    pub from_device: Moved,
    /// Bytes of the K/V cache read outside of graphs, to look at it or to save it.
    pub cache_read: u64,
    /// Bytes of the K/V cache written outside of graphs, to restore it.
    #[serde(default)]
    pub cache_written: u64,
}

impl Traffic {
    /// Adds what another session moved.
    pub fn add(&mut self, other: &Self) {
        self.graphs += other.graphs;
        for (mine, others) in
            [(&mut self.to_device, &other.to_device), (&mut self.from_device, &other.from_device)]
        {
            mine.total += others.total;
            mine.largest = mine.largest.max(others.largest);
        }
        self.cache_read += other.cache_read;
        self.cache_written += other.cache_written;
    }

    /// Counts one graph.
    pub(crate) fn graph(&mut self, to_device: usize, from_device: usize) {
        self.graphs += 1;
        self.to_device.add(to_device as u64);
        self.from_device.add(from_device as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_graph_and_the_sum_are_kept() {
        let mut traffic = Traffic::default();
        traffic.graph(8, 100);
        traffic.graph(16, 50);
        assert_eq!(traffic.graphs, 2);
        assert_eq!(traffic.to_device, Moved { total: 24, largest: 16 });
        assert_eq!(traffic.from_device, Moved { total: 150, largest: 100 });
        let mut other = Traffic { cache_read: 7, cache_written: 9, ..Traffic::default() };
        other.graph(32, 1);
        traffic.add(&other);
        assert_eq!((traffic.graphs, traffic.cache_read, traffic.cache_written), (3, 7, 9));
        assert_eq!(traffic.to_device, Moved { total: 56, largest: 32 });
        assert_eq!(traffic.from_device, Moved { total: 151, largest: 100 });
    }
}
