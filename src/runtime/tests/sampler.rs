//! The dense sampler as a graph of ggml, against the f64 contract of the oracle: on the CPU, and on a Vulkan device,
//! a software one where there is no other.

use ggml_sys::{Ggml, Selection};
use oracle::sampler::{Drawn, draw_rows};
use runtime::dense_sampler::{DenseSampler, Sampled, Scan, Settings, Shape};
use runtime::{DeviceRequest, Error, Fault};
use std::path::PathBuf;

/// ggml hides software devices unless this names them.
const VISIBLE: &str = "GGML_VK_VISIBLE_DEVICES";

const NONE: f32 = f32::NEG_INFINITY;

/// The build that the environment names, or the one that the set-up installs.
fn open(selection: &Selection) -> &'static Ggml {
    let folder = std::env::var_os("GGML_PARITY_GGML").map_or_else(
        || {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_default())
                .join(".cache/ggml-parity/ggml/npm-3.21.1")
        },
        PathBuf::from,
    );
    Ggml::open(&folder, selection)
        .unwrap_or_else(|error| panic!("these tests need a ggml build (ci/quickstart gets one): {error}"))
}

/// Numbers from 0 up to 1 that look like nothing, the same every time.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        })
        .collect()
}

/// Eight rows of every sort: noise, peaks, ties, one hot, uniform, impossible entries, nothing but those, NaN.
fn canvas(vocab: usize) -> Vec<f32> {
    let noise = numbers(8 * vocab, 7);
    let value = |row: usize, i: usize| {
        let x = noise[row * vocab + i];
        match row {
            0 => 6.0 * x - 3.0,
            1 => {
                if x > 0.99 {
                    12.0 + x
                } else {
                    2.0 * x
                }
            }
            2 => {
                if x > 0.7 {
                    4.0
                } else {
                    x
                }
            }
            3 => {
                if i == vocab / 2 {
                    80.0
                } else {
                    0.0
                }
            }
            4 => 0.5,
            5 => {
                if x > 0.3 || i == 0 {
                    NONE
                } else {
                    3.0 * x
                }
            }
            6 => NONE,
            _ => {
                if i == vocab - 1 {
                    f32::NAN
                } else {
                    x
                }
            }
        }
    };
    (0..8).flat_map(|row| (0..vocab).map(move |i| (row, i))).map(|(row, i)| value(row, i)).collect()
}

fn sampler(
    ggml: &'static Ggml,
    device: &str,
    shape: Shape,
    inv_temp: f32,
    scan: Option<Scan>,
    planted: Option<Fault>,
) -> DenseSampler {
    let settings = Settings { inv_temp, threads: 1, scan, planted };
    DenseSampler::open(ggml, &DeviceRequest::plain(device), shape, settings).unwrap()
}

/// What differs between a device and the contract, in words; the largest difference in entropy.
fn differences(device: &[Option<Sampled>], exact: &[Option<Drawn>]) -> (Vec<String>, f64) {
    assert_eq!(device.len(), exact.len());
    let (mut found, mut most) = (Vec::new(), 0f64);
    for (row, (device, exact)) in device.iter().zip(exact).enumerate() {
        match (device, exact) {
            (None, None) => {}
            (Some(device), Some(exact)) => {
                let entropy = (f64::from(device.entropy) - exact.entropy).abs();
                most = most.max(entropy);
                if device.argmax as usize != exact.argmax {
                    found.push(format!("row {row}: argmax {} of {}", device.argmax, exact.argmax));
                }
                if !(entropy <= 2e-4) {
                    found.push(format!("row {row}: entropy {} of {}", device.entropy, exact.entropy));
                }
                if !(exact.lowest..=exact.highest).contains(&(device.token as usize)) {
                    found.push(format!("row {row}: token {} of {exact:?}", device.token));
                }
            }
            _ => found.push(format!("row {row}: {device:?} of {exact:?}")),
        }
    }
    (found, most)
}

/// Temperatures, and how the running sum is made.
const WAYS: [(f32, Option<Scan>); 4] =
    [(1.0, None), (1.25, Some(Scan::Triangle)), (1e5, None), (1e-5, Some(Scan::Triangle))];

fn check(ggml: &'static Ggml, device: &str, vocabularies: &[usize]) {
    for &vocab in vocabularies {
        let shape = Shape { vocab, rows: 8 };
        let logits = canvas(vocab);
        let draws = [numbers(8, 3), vec![0.0; 8], vec![1.0 - f32::EPSILON / 2.0; 8]];
        for (inv_temp, scan) in WAYS {
            let mut sampler = sampler(ggml, device, shape, inv_temp, scan, None);
            sampler.place(&logits).unwrap();
            let what = format!("{device}, {vocab} x {inv_temp}, {:?}", sampler.scan());
            for u in &draws {
                let exact = draw_rows(&logits, vocab, u, inv_temp);
                assert!(exact[6].is_none() && exact[7].is_none());
                let (found, most) = differences(&sampler.sample(u).unwrap(), &exact);
                assert!(found.is_empty(), "{what}: {found:#?}");
                println!("{what}: entropy {most:.1e}");
            }
            let (moved, placed) = (sampler.traffic(), sampler.placement());
            assert_eq!((moved.to_device.largest, moved.from_device.largest), (8 * 4, 8 * 12));
            let elsewhere = if device == "CPU" { placed.off_cpu() } else { placed.on_cpu() };
            assert!(elsewhere == 0 && placed.total() > 0, "{placed:?}");
            let mut fetched = vec![0.0; 8 * vocab];
            sampler.fetch(&mut fetched).unwrap();
            assert_eq!(fetched[..vocab], logits[..vocab]);
        }
    }
}

/// Every planted mistake shows, and only in what it is about.
fn mistakes(ggml: &'static Ggml) {
    let vocab = 49_152;
    // Equal shares that no binary fraction is, so that a serial sum drifts.
    let flat = (0..vocab).map(|i| if i == 7 || i == 9 { 1.0 } else { -0.7 });
    let logits: Vec<f32> = (0..8).flat_map(|_| flat.clone()).collect();
    let u = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95];
    let exact = draw_rows(&logits, vocab, &u, 1.0);
    for (fault, word) in [
        (Fault::ArgmaxLast, "argmax"),
        (Fault::CumsumOneLevel, "token"),
        (Fault::EntropyWithoutMean, "entropy"),
    ] {
        let mut sampler = sampler(ggml, "CPU", Shape { vocab, rows: 8 }, 1.0, None, Some(fault));
        sampler.place(&logits).unwrap();
        let (found, _) = differences(&sampler.sample(&u).unwrap(), &exact);
        assert!(!found.is_empty() && found.iter().all(|line| line.contains(word)), "{fault:?}: {found:?}");
    }
}

#[test]
fn the_graph_keeps_the_contract() {
    if std::env::var_os(VISIBLE).is_none() {
        // The variable must be there before the process starts. Mesa's software device crashes some processes at
        // random, which have compared nothing; one whose figures are wrong ends with an exit code.
        for attempt in 1..=3 {
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "the_graph_keeps_the_contract", "--nocapture"])
                .env(VISIBLE, "0")
                .status()
                .unwrap();
            if status.success() {
                return;
            }
            eprintln!("attempt {attempt}: {status}");
            assert!(status.code().is_none() && attempt < 3, "{status}");
        }
    }
    let ggml = open(&Selection::Everything);
    check(ggml, "CPU", &[2, 64, 1000, 1536]);
    mistakes(ggml);
    refused(ggml);
    if ggml.devices().iter().any(|device| device.name() == "Vulkan0") {
        check(ggml, "Vulkan0", &[2, 1000]);
    } else {
        println!("this build and machine have no Vulkan device: only the CPU was tested");
    }
}

fn refused(ggml: &'static Ggml) {
    let open = |vocab, rows, inv_temp| {
        let settings = Settings { inv_temp, threads: 1, scan: None, planted: None };
        DenseSampler::open(ggml, &DeviceRequest::plain("CPU"), Shape { vocab, rows }, settings)
    };
    for (vocab, rows, inv_temp) in
        [(0, 1, 1.0), (2, 0, 1.0), (5_000_000, 1, 1.0), (2, 1, 0.0), (2, 1, f32::NAN)]
    {
        assert!(matches!(open(vocab, rows, inv_temp), Err(Error::Input(_))), "{vocab} {rows} {inv_temp}");
    }
    let mut sampler = open(4, 2, 1.0).unwrap();
    assert!(sampler.place(&[0.0; 7]).is_err() && sampler.sample(&[0.5]).is_err());
    assert_eq!(sampler.own_name(), None);
    assert_eq!(sampler.own(&[0.5, 0.5]).unwrap(), None);
}
