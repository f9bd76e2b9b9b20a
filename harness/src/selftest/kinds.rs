//! The kinds of faults there are, and what makes one of them larger or smaller.

use crate::named::named_enum;

named_enum! {
    /// A kind of fault.
    pub enum Kind as "fault" {
        /// A NaN in a logit that is not its row's largest.
        Nan = "nan-logit",
        /// A NaN in the place of a row's largest logit.
        NanAtTop = "nan-at-arg-max",
        /// +inf where the reference has a number.
        PlusInfinity = "unmatched-plus-inf",
        /// -inf where the reference has a number.
        MinusInfinity = "unmatched-minus-inf",
        /// An infinity that all arms hold, and the rest of the row times -1000.
        MatchedInfinity = "matched-inf-rest-x-1000",
        /// One row five times too large.
        RowScaled = "row-x5",
        /// One row of zeros.
        RowZeroed = "row-zeroed",
        /// Two rows in each other's place.
        RowsSwapped = "rows-swapped",
        /// One column of logits with something added in every row.
        ColumnShifted = "column-shifted",
        /// The last token's logits are those of the row before.
        LastRowStale = "last-row-stale",
        /// One head of K times 1.01.
        KHeadScaled = "k-head-x1.01",
        /// The elements of one head of V in another order.
        VHeadPermuted = "v-head-permuted",
        /// The newest position of one layer's K still holds the step before.
        KStale = "k-stale-by-a-step",
        /// K as it was before RoPE.
        KWithoutRope = "k-without-rope",
        /// One position of V is zero.
        VPositionZeroed = "v-position-zeroed",
        /// K and V of the last layer are not there.
        MissingLayer = "missing-layer",
        /// The logits are not there.
        MissingLogits = "missing-logits",
        /// A row less.
        FewerRows = "fewer-rows",
        /// A row more.
        MoreRows = "more-rows",
        /// One token is another.
        OtherTokens = "other-tokens",
        /// The capture is of another model file.
        WrongModelHash = "wrong-model-hash",
        /// The capture is of a build with another library.
        WrongBuild = "wrong-build",
        /// The device's capture is a copy of the reference's file.
        CopyOfReference = "copy-of-reference",
        /// The rows of every step are those of the step before.
        OffByOneStep = "off-by-one-step",
        /// Logits and caches are all zero.
        AllZeros = "all-zeros",
        /// V of one layer has its mean everywhere.
        ConstantTensor = "constant-tensor",
        /// Denormal values of one row are zero, where the other arms keep them.
        DenormalFlush = "denormal-flush",
        /// The lowest bit of the exponent of one logit is flipped.
        ExponentBit = "exponent-bit-flip",
        /// The highest bit of the mantissa of one logit is flipped.
        TopMantissaBit = "top-mantissa-bit-flip",
        /// The lowest bit of the mantissa of one logit is flipped.
        LowestMantissaBit = "lowest-mantissa-bit-flip",
    }
}

/// What makes a fault of some kind larger or smaller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Nothing: it is there or not.
    Whole,
    /// A size from 0, which is no fault, on: `full` is the kind's own, `most` the largest that is tried.
    Size {
        /// As the kind's name says it.
        full: f64,
        /// The largest.
        most: f64,
    },
    /// The number of a bit of an F32, 0 being the lowest: `full` is the kind's own.
    Bit {
        /// As the kind's name says it.
        full: u32,
        /// The lowest that is tried.
        first: u32,
        /// The highest that is tried.
        last: u32,
    },
}

impl Scale {
    /// The size of the fault that the kind's name tells.
    pub(crate) fn full(self) -> f64 {
        match self {
            Self::Whole => 1.0,
            Self::Size { full, .. } => full,
            Self::Bit { full, .. } => f64::from(full),
        }
    }
}

impl Kind {
    /// Whether the gate must catch it. The lowest bit of a mantissa is less than the arms differ by anyway.
    #[must_use]
    pub fn must_be_caught(self) -> bool {
        self != Self::LowestMantissaBit
    }

    /// What makes it larger or smaller.
    pub(crate) fn scale(self) -> Scale {
        let share = Scale::Size { full: 1.0, most: 1.0 };
        match self {
            Self::MatchedInfinity => Scale::Size { full: 1001.0, most: 1001.0 },
            Self::RowScaled => Scale::Size { full: 4.0, most: 1e3 },
            Self::ColumnShifted => Scale::Size { full: 0.1, most: 1e3 },
            Self::KHeadScaled => Scale::Size { full: 0.01, most: 1e3 },
            Self::RowZeroed
            | Self::RowsSwapped
            | Self::LastRowStale
            | Self::VHeadPermuted
            | Self::KStale
            | Self::KWithoutRope
            | Self::VPositionZeroed
            | Self::OffByOneStep
            | Self::AllZeros
            | Self::ConstantTensor
            | Self::DenormalFlush => share,
            Self::ExponentBit => Scale::Bit { full: 23, first: 23, last: 30 },
            Self::TopMantissaBit => Scale::Bit { full: 22, first: 0, last: 22 },
            Self::LowestMantissaBit => Scale::Bit { full: 0, first: 0, last: 0 },
            _ => Scale::Whole,
        }
    }

    /// A size in words.
    pub(crate) fn words(self, size: f64) -> String {
        let percent = || format!("{} %", short(100.0 * size));
        match self {
            Self::MatchedInfinity => format!("the rest of the row times 1 - {}", short(size)),
            Self::RowScaled => format!("the row times 1 + {}", short(size)),
            Self::KHeadScaled => format!("the head times 1 + {}", short(size)),
            Self::ColumnShifted => format!("{} times the root mean square of all logits", short(size)),
            Self::RowZeroed => format!("the row less {}", percent()),
            Self::VPositionZeroed => format!("the position less {}", percent()),
            Self::AllZeros => format!("all values less {}", percent()),
            Self::RowsSwapped => format!("{} of the other row", percent()),
            Self::LastRowStale => format!("{} of the row before", percent()),
            Self::VHeadPermuted => format!("{} of the neighbouring element", percent()),
            Self::KStale => format!("{} of the position before", percent()),
            Self::KWithoutRope => format!("every angle less {}", percent()),
            Self::OffByOneStep => format!("{} of the step before", percent()),
            Self::ConstantTensor => format!("{} of the mean", percent()),
            Self::DenormalFlush => format!("{} of the row's columns", percent()),
            Self::ExponentBit | Self::TopMantissaBit | Self::LowestMantissaBit => format!("bit {size}"),
            Self::Nan | Self::NanAtTop | Self::PlusInfinity | Self::MinusInfinity => "one value".to_owned(),
            Self::MissingLayer => "one layer".to_owned(),
            Self::MissingLogits => "one tensor".to_owned(),
            Self::FewerRows | Self::MoreRows => "one row".to_owned(),
            Self::OtherTokens => "one token".to_owned(),
            Self::WrongModelHash | Self::WrongBuild => "one hash".to_owned(),
            Self::CopyOfReference => "one file".to_owned(),
        }
    }
}

/// Three digits.
fn short(value: f64) -> String {
    if (0.01..1000.0).contains(&value) { format!("{value:.3}") } else { format!("{value:.2e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_kinds_of_which_one_may_go_uncaught() {
        assert_eq!(Kind::ALL.len(), 30);
        assert_eq!(Kind::ALL.iter().filter(|kind| kind.must_be_caught()).count(), 29);
    }

    #[test]
    fn every_size_has_its_own_words() {
        for &kind in Kind::ALL {
            let words = kind.words(kind.scale().full());
            assert!(!words.is_empty());
            if kind.scale() != Scale::Whole {
                assert_ne!(words, kind.words(0.017), "{kind}");
            }
        }
        assert_eq!(Kind::RowScaled.words(0.0004), "the row times 1 + 4.00e-4");
        assert_eq!(Kind::KStale.words(0.25), "25.000 % of the position before");
    }
}
