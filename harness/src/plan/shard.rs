//! Shards: parts of a declared matrix that several machines, or several jobs of one, run side by side.
//!
//! All cells of one case stay together, so that its reference and its oracle are computed once. The cases are sorted by
//! id and dealt out in turn: which shard a case is in depends on the set of declared cases, not on the order in which
//! they were declared, and each shard gets its share of every model and mode.

use super::{Case, CellId, IdError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Part `index` of `of`, counted from 1: `2/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Shard {
    /// Which part it is, from 1.
    pub index: u32,
    /// How many parts there are.
    pub of: u32,
}

impl Shard {
    /// The cells of this shard, in the order in which they were declared.
    #[must_use]
    pub fn pick(self, declared: &[CellId]) -> Vec<CellId> {
        let mut cases: Vec<&Case> = declared.iter().map(|id| &id.case).collect();
        cases.sort_by_cached_key(ToString::to_string);
        cases.dedup();
        let turn: BTreeMap<&Case, u32> = cases.into_iter().zip((0..self.of).cycle()).collect();
        declared.iter().filter(|id| turn[&id.case] + 1 == self.index).cloned().collect()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.index, self.of))
    }
}

impl FromStr for Shard {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = || IdError::new("shard", text, "`i/n` is wanted, with i from 1 to n");
        // `parse` alone would take `+1`.
        let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
        let (index, of) = text.split_once('/').ok_or_else(wrong)?;
        let (index, of): (u32, u32) = number(index).zip(number(of)).ok_or_else(wrong)?;
        if index == 0 || index > of { Err(wrong()) } else { Ok(Self { index, of }) }
    }
}

impl TryFrom<String> for Shard {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> Self {
        shard.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn cells(seed: &[(u8, u8)]) -> Vec<CellId> {
        let seed: BTreeSet<_> = seed.iter().collect();
        seed.into_iter()
            .map(|(case, device)| format!("m{case}/f32/full@b:V{device}").parse().unwrap())
            .collect()
    }

    proptest! {
        #[test]
        fn shards_are_a_partition_that_keeps_cases_together(
            seed in proptest::collection::vec((0u8..20, 0u8..3), 0..40), of in 1u32..9,
        ) {
            let declared = cells(&seed);
            let shards: Vec<Vec<CellId>> =
                (1..=of).map(|index| Shard { index, of }.pick(&declared)).collect();
            let mut all = shards.concat();
            all.sort();
            let mut wanted = declared.clone();
            wanted.sort();
            prop_assert_eq!(all, wanted);
            let cases = |shard: &[CellId]| shard.iter().map(|id| id.case.clone()).collect::<BTreeSet<_>>();
            let counts: Vec<usize> = shards.iter().map(|shard| cases(shard).len()).collect();
            let total = cases(&declared).len();
            prop_assert_eq!(counts.iter().sum::<usize>(), total, "no case is in two shards");
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }

        #[test]
        fn the_order_of_declaration_does_not_matter(
            seed in proptest::collection::vec((0u8..20, 0u8..3), 0..40), of in 1u32..5,
        ) {
            let declared = cells(&seed);
            let reversed: Vec<CellId> = declared.iter().rev().cloned().collect();
            for index in 1..=of {
                let mut back = Shard { index, of }.pick(&reversed);
                back.reverse();
                prop_assert_eq!(back, Shard { index, of }.pick(&declared));
            }
        }

        #[test]
        fn texts_round_trip(index in 1u32.., more in 0u32..1000) {
            let shard = Shard { index, of: index.saturating_add(more) };
            prop_assert_eq!(shard.to_string().parse::<Shard>().unwrap(), shard);
        }
    }

    #[test]
    fn what_is_no_shard_is_refused() {
        for text in
            ["", "1", "0/2", "3/2", "1/0", "+1/2", "1/+2", "1/2/3", "-1/2", "a/b", "1/4294967296", "/2", "1/"]
        {
            let error = text.parse::<Shard>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }
}
