//! Block formats against ggml's own routines, through hashes of what these gave for the same inputs.

use model_file::quant::supported;
use model_file::{TensorType, dequantize, quantize};
use sha2::{Digest, Sha256};

/// A 64-bit xorshift generator: inputs that are easy to make again in any language.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// 64 rows of 256 bell-shaped values, four scales in turn, every fifth row without negative ones. Exact in F32.
fn values() -> Vec<f32> {
    let mut random = XorShift(1);
    (0..64 * 256)
        .map(|i| {
            let bits = random.next();
            let sum: i32 = (0..4).map(|k| (bits >> (16 * k) & 0xFFFF) as i32).sum();
            let scale = [1.0, 0.125, 1.0 / 1024.0, 16.0][i / 256 % 4];
            let value = (sum - 131_070) as f32 / 262_144.0 * scale;
            if i / 256 % 5 == 3 { value.abs() } else { value }
        })
        .collect()
}

/// 512 blocks of any bytes.
fn any_blocks(ty: TensorType) -> Vec<u8> {
    let mut random = XorShift(2);
    (0..512 * ty.block_bytes()).map(|_| (random.next() >> 56) as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// SHA-256 of ggml's `to_float` on `any_blocks` (ggml 0.23.0, x86-64, little-endian F32, every NaN as
/// 0x7fc00000): ours must be the same in every bit.
const DEQUANTIZED: &[(TensorType, &str)] = &[
    (TensorType::F16, "b519acfa7d13eba42d66c0c8b569647c3adfae9c1001f10d175b3467e79f9bba"),
    (TensorType::BF16, "d6bd99ce227beb31e0c5f66b14d7a6b8bc449ab047e02d4ee2d018722bb5c844"),
    (TensorType::Q4_0, "a9cd90b2ae7348afa44acf8e8a2a678d9ccfaeebefd1ce0549096665fb05d3e6"),
    (TensorType::Q4_1, "2b746873544b067ced0faae56133b962201e6b4496857bb13b1267402cb5abd0"),
    (TensorType::Q5_0, "72ead7fd00b48cd2f1c11d29e06a9a1d5d6b9a2497a9ef2de2bd65f5b2dfffc0"),
    (TensorType::Q5_1, "39998e629c8cccda0d449995a1d2c859b7cacbae977e4cbcd66480553e08cdc1"),
    (TensorType::Q8_0, "0aa8b6c8e887fc404888634363aaf45e6506bb95d20d7e286e6f01995795b661"),
    (TensorType::Q4_K, "9d36ae082a6b69c667a1decfdca2964a8f8ecc8dbf07e35c6375e9c09212602b"),
    (TensorType::Q5_K, "89681f5c4ab293b1af845559d45228e667a61cba098c6c613af44dca5cc371f3"),
    (TensorType::Q6_K, "411b11a2a4853cefb090ce0767fb6bd1b1512e779846b9fce4a8e2d391d62d93"),
    (TensorType::IQ4_NL, "88a17cfd84b6c531673eba1225d6fde085cabefde1e4bb6ebe68ba72f700061c"),
    (TensorType::MXFP4, "aa84d953f67a45d4dd41aa6117e46f4df3f9cbf75a774856e35dbeb06bdafa76"),
];

/// SHA-256 of what `quantize` and ggml's `ggml_quantize_chunk` both make of `values`.
const QUANTIZED_AS_GGML: &[(TensorType, &str)] = &[
    (TensorType::F16, "414b223d69b0cd59017268d8741b25458b1f2dad9c7eb9c0468b2a429561ba75"),
    (TensorType::BF16, "afbe9e1fe6123cc8fe8a62b2e26017a2a7eb4bc54c5002c336ff12359a7624b4"),
    (TensorType::Q4_0, "e3099cf0ac38bc86a341957a95f313fed90dd417a76aefaff5dd8dc1ccb4dd40"),
    (TensorType::Q4_1, "4bcca51e4c57c526dd6a6a1f55fa631eccf29c550594321181c4ce9df49cccc1"),
    (TensorType::Q5_0, "063a0005af9a343a24519cd464628e7e854a42efd608ba7cdc2cf5f91c20158b"),
    (TensorType::Q5_1, "5546f6fb793188739fbc8c57c7026f76441c9980345859a0c5bf11641af40cad"),
    (TensorType::Q8_0, "ab79645f0697f5d240634b2373467d57b0d4724087c70b92fcfb46acd11452e8"),
    (TensorType::MXFP4, "46737a4b61d8e0551f54c7c1516340b0626919d68f83afc8266f686e00b054a3"),
];

/// SHA-256 of what `quantize` makes of `values` where the search for scales is our own: pinned so that a
/// quantised model is the same file on every platform.
const QUANTIZED: &[(TensorType, &str)] = &[
    (TensorType::Q4_K, "6ccff3f45fae397f8b6000d1ad90c6c97c5ed32118fb2a0a2bd594ff371edf0f"),
    (TensorType::Q5_K, "69d8dade2c3d157f651d92e9215bb064b106bf38efe9d8a3abd3d3b67ebeeac4"),
    (TensorType::Q6_K, "86118e5086d478a25eb8b3fe5e9c90a6395cba6ae99db19e041110c70b78acf6"),
    (TensorType::IQ4_NL, "38c88a557d9fc7e1bdb50ee54c6b5dbe95caf713b7823b2e68163de201c10afe"),
];

#[test]
fn dequantised_values_are_ggmls_in_every_bit() {
    for &(ty, expected) in DEQUANTIZED {
        let bytes = any_blocks(ty);
        let mut out = vec![0.0; 512 * ty.block_len() as usize];
        dequantize(ty, &bytes, &mut out).unwrap();
        let bits = |v: f32| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() };
        let bytes: Vec<u8> = out.iter().flat_map(|&v| bits(v).to_le_bytes()).collect();
        assert_eq!(sha256(&bytes), expected, "{ty}");
    }
    // F32 needs no routine.
    assert_eq!(DEQUANTIZED.len() + 1, supported().count());
}

#[test]
fn quantised_bytes_are_pinned() {
    let values = values();
    let pins: Vec<_> = QUANTIZED_AS_GGML.iter().chain(QUANTIZED).collect();
    let actual: Vec<(TensorType, String)> = pins
        .iter()
        .map(|&&(ty, _)| {
            let mut bytes = Vec::new();
            quantize(ty, &values, &mut bytes).unwrap();
            (ty, sha256(&bytes))
        })
        .collect();
    let expected: Vec<_> = pins.iter().map(|&&(ty, hash)| (ty, hash.to_string())).collect();
    assert_eq!(actual, expected);
    assert_eq!(pins.len() + 1, supported().count());
}
