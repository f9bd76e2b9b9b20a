//! ggml's tensor types as they stand in GGUF files: number, name, block length, block size.

use std::fmt;

macro_rules! tensor_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $len:literal, $bytes:literal;)*) => {
        /// The type of a tensor's elements in a file.
        ///
        /// The numbers are those that GGUF stores. Quantised types come in blocks: [`block_len`](Self::block_len)
        /// elements share [`block_bytes`](Self::block_bytes) bytes, and a row is a whole number of blocks.
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum TensorType {
            $($(#[$doc])* $variant,)*
        }

        impl TensorType {
            /// Every type, in the order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number that GGUF stores.
            pub const fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)* }
            }

            /// The type with this number; `None` for unknown and removed ones.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// The usual name, as `F32` or `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Elements in one block; 1 for plain types.
            pub const fn block_len(self) -> u64 {
                match self { $(Self::$variant => $len,)* }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> u64 {
                match self { $(Self::$variant => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    /// IEEE single precision.
    F32 = 0, "F32", 1, 4;
    /// IEEE half precision.
    F16 = 1, "F16", 1, 2;
    /// 4 bits, scale.
    Q4_0 = 2, "Q4_0", 32, 18;
    /// 4 bits, scale and minimum.
    Q4_1 = 3, "Q4_1", 32, 20;
    /// 5 bits, scale.
    Q5_0 = 6, "Q5_0", 32, 22;
    /// 5 bits, scale and minimum.
    Q5_1 = 7, "Q5_1", 32, 24;
    /// 8 bits, scale.
    Q8_0 = 8, "Q8_0", 32, 34;
    /// 8 bits, scale and sum: ggml's activation format.
    Q8_1 = 9, "Q8_1", 32, 36;
    /// 2 bits in super-blocks.
    Q2_K = 10, "Q2_K", 256, 84;
    /// 3 bits in super-blocks.
    Q3_K = 11, "Q3_K", 256, 110;
    /// 4 bits in super-blocks.
    Q4_K = 12, "Q4_K", 256, 144;
    /// 5 bits in super-blocks.
    Q5_K = 13, "Q5_K", 256, 176;
    /// 6 bits in super-blocks.
    Q6_K = 14, "Q6_K", 256, 210;
    /// 8 bits in super-blocks: ggml's activation format for the K types.
    Q8_K = 15, "Q8_K", 256, 292;
    /// 2 bits from a codebook, 2.06 a weight.
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    /// 2 bits from a codebook, 2.31 a weight.
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    /// 3 bits from a codebook, 3.06 a weight.
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    /// 1 bit from a codebook, 1.56 a weight.
    IQ1_S = 19, "IQ1_S", 256, 50;
    /// 4 bits on a non-linear grid.
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    /// 3 bits from a codebook, 3.44 a weight.
    IQ3_S = 21, "IQ3_S", 256, 110;
    /// 2 bits from a codebook, 2.56 a weight.
    IQ2_S = 22, "IQ2_S", 256, 82;
    /// 4 bits on a non-linear grid in super-blocks.
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    /// Signed byte.
    I8 = 24, "I8", 1, 1;
    /// Signed 16-bit integer.
    I16 = 25, "I16", 1, 2;
    /// Signed 32-bit integer.
    I32 = 26, "I32", 1, 4;
    /// Signed 64-bit integer.
    I64 = 27, "I64", 1, 8;
    /// IEEE double precision.
    F64 = 28, "F64", 1, 8;
    /// 1 bit from a codebook, 1.75 a weight.
    IQ1_M = 29, "IQ1_M", 256, 56;
    /// The upper half of an IEEE single.
    BF16 = 30, "BF16", 1, 2;
    /// Ternary, 1.69 a weight.
    TQ1_0 = 34, "TQ1_0", 256, 54;
    /// Ternary, 2.06 a weight.
    TQ2_0 = 35, "TQ2_0", 256, 66;
    /// 4-bit floats (E2M1) with a power-of-two scale (E8M0).
    MXFP4 = 39, "MXFP4", 32, 17;
    /// 4-bit floats (E2M1) with an 8-bit float scale for each 16.
    NVFP4 = 40, "NVFP4", 64, 36;
    /// 1 bit, scale.
    Q1_0 = 41, "Q1_0", 128, 18;
    /// 2 bits, scale.
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl TensorType {
    /// The type with this name, in any case.
    ///
    /// ```
    /// # use model_file::TensorType;
    /// assert_eq!(TensorType::from_name("q4_k"), Some(TensorType::Q4_K));
    /// ```
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `n` elements; `None` if `n` is not a whole number of blocks or the size overflows.
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether a number names a type that ggml once had and removed from files.
    pub(crate) const fn was_removed(id: u32) -> bool {
        matches!(id, 4 | 5 | 31..=33 | 36..=38)
    }

    /// Whether weights of a model can have this type: floats and quantised types but activations' formats.
    pub(crate) const fn is_weight(self) -> bool {
        !matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64 | Self::F64 | Self::Q8_1 | Self::Q8_K)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back() {
        for &t in TensorType::ALL {
            assert_eq!(TensorType::from_id(t.id()), Some(t));
            assert_eq!(TensorType::from_name(&t.name().to_lowercase()), Some(t));
            assert_eq!(t.row_bytes(t.block_len() * 3), Some(t.block_bytes() * 3));
        }
        for id in (0..64).filter(|&id| TensorType::was_removed(id)) {
            assert_eq!(TensorType::from_id(id), None);
        }
        assert_eq!(TensorType::from_id(43), None);
        assert_eq!(TensorType::from_id(u32::MAX), None);
    }

    #[test]
    fn bits_per_weight_are_those_of_the_formats() {
        let bits = |t: TensorType| t.block_bytes() as f64 * 8.0 / t.block_len() as f64;
        for (t, expected) in [
            (TensorType::Q4_0, 4.5),
            (TensorType::Q8_0, 8.5),
            (TensorType::Q4_K, 4.5),
            (TensorType::Q5_K, 5.5),
            (TensorType::Q6_K, 6.5625),
            (TensorType::MXFP4, 4.25),
            (TensorType::NVFP4, 4.5),
        ] {
            assert_eq!(bits(t), expected, "{t}");
        }
    }

    #[test]
    fn rows_are_whole_blocks_and_do_not_overflow() {
        assert_eq!(TensorType::Q4_0.row_bytes(576), Some(324));
        assert_eq!(TensorType::Q4_K.row_bytes(576), None);
        assert_eq!(TensorType::F32.row_bytes(u64::MAX), None);
        assert_eq!(TensorType::F32.row_bytes(0), Some(0));
    }
}
