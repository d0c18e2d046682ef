//! `smoke_files gguf_file|safetensors_folder|packed_file SECONDS SEED`: a target for
//! binary files under a plain mutation loop, for machines without libFuzzer. With `seeds
//! DIR` instead of the numbers, writes the well-formed inputs to DIR, a corpus to start
//! libFuzzer from.

use openwork_fuzz::checkpoint;
use std::time::{Duration, Instant};

/// Numbers at which counts and offsets go wrong.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    32,
    33,
    255,
    256,
    4096,
    1 << 16,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 60,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];
/// Words of JSON headers.
const WORDS: &[&str] =
    &["-", "0", "9", "18446744073709551615", "{", "}", "[", "]", ",", "\"", "F16", "x", "[0,0]"];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (run, seeds): (fn(&[u8]), _) = match args.first().map(String::as_str) {
        Some("gguf_file") => (checkpoint::gguf_file, checkpoint::gguf_seeds()),
        Some("safetensors_folder") => {
            (checkpoint::safetensors_folder, checkpoint::safetensors_seeds())
        }
        Some("packed_file") => (checkpoint::packed_file, checkpoint::packed_seeds()),
        _ => panic!("the first argument names a target"),
    };
    if args.get(1).is_some_and(|word| word == "seeds") {
        for (i, seed) in seeds.iter().enumerate() {
            std::fs::write(format!("{}/seed-{i}", args[2]), seed).expect("a writable folder");
        }
        return;
    }
    for seed in &seeds {
        run(seed);
    }
    let seconds = args.get(1).map_or(10, |s| s.parse().expect("seconds"));
    let mut random = Random(args.get(2).map_or(1, |s| s.parse().expect("a seed")));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut pool = seeds.clone();
    let (mut runs, mut slowest) = (0_u64, Duration::ZERO);
    while Instant::now() < end {
        for _ in 0..64 {
            let mut data = pool[random.below(pool.len())].clone();
            for _ in 0..=random.below(4) {
                mutate(&mut data, &mut random);
            }
            let start = Instant::now();
            let failed = std::panic::catch_unwind(|| run(&data)).is_err();
            slowest = slowest.max(start.elapsed());
            if failed {
                let name = format!("crash-{}-{runs}", args[0]);
                std::fs::write(&name, &data).expect("the input can be kept");
                panic!("the input is kept in {name}");
            }
            runs += 1;
            if runs % 64 == 0 {
                let slot = seeds.len() + random.below(64);
                if slot < pool.len() { pool[slot] = data } else { pool.push(data) }
            }
        }
    }
    println!("{}: {runs} runs, the slowest {slowest:?}", args[0]);
}

fn mutate(data: &mut Vec<u8>, random: &mut Random) {
    // The header is where the promises are: favor it.
    let end = if random.below(4) > 0 { data.len().min(2048) } else { data.len() };
    let at = random.below(end + 1);
    match random.below(7) {
        0 if at < data.len() => data[at] ^= 1 << random.below(8),
        1 if at < data.len() => data[at] = random.below(256) as u8,
        2 => {
            let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)].min(data.len() - at);
            data[at..at + width].copy_from_slice(&edge[..width]);
        }
        3 => {
            let word = WORDS[random.below(WORDS.len())];
            let upto = (at + random.below(3)).min(data.len());
            data.splice(at..upto, word.bytes());
        }
        4 => data.truncate(at.max(8)),
        5 => {
            let upto = (at + 1 + random.below(16)).min(data.len());
            data.drain(at.min(upto)..upto);
        }
        _ => {
            let from = random.below(end + 1);
            let piece = data[from.min(at)..from.max(at)].to_vec();
            data.splice(at..at, piece);
            data.truncate(1 << 16);
        }
    }
}
