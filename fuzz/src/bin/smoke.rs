//! `smoke TARGET SECONDS SEED`: a target under a plain mutation loop, for
//! machines without libFuzzer.

use openwork_fuzz::TARGETS;
use std::time::{Duration, Instant};

/// Bytes that the grammars give meaning to.
#[rustfmt::skip]
const TOKENS: &[&str] = &[
    "(", ")", "<", ">", ",", ":", "_", "-", "0", "1", "2", "3", "4", "6", "12", "\n", " ",
    "%", "@", "x", "|", "~", "+", "*", "/", "&", "->", "=", ";", "#", "M", "K", " on (", " in ",
    " pad ", " view ", " block ", " scope ", " keep ", " perm ", "blocks ", "scopes ",
];
const LONGEST: usize = 300;

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
    let target = TARGETS.iter().find(|t| Some(t.name) == args.first().map(String::as_str));
    let target = target.expect("the first argument names a target");
    let seconds = args.get(1).map_or(10, |s| s.parse().expect("seconds"));
    let mut random = Random(args.get(2).map_or(1, |s| s.parse().expect("a seed")));
    let mut pool: Vec<Vec<u8>> = target.seeds.iter().map(|s| s.as_bytes().to_vec()).collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runs = 0_u64;
    while Instant::now() < end {
        for _ in 0..256 {
            let mut data = pool[random.below(pool.len())].clone();
            for _ in 0..=random.below(6) {
                mutate(&mut data, &pool, &mut random);
            }
            data.truncate(LONGEST);
            let failed = std::panic::catch_unwind(|| (target.run)(&data)).is_err();
            assert!(!failed, "seed input: {:?}", String::from_utf8_lossy(&data));
            runs += 1;
            if runs % 64 == 0 {
                let slot = target.seeds.len() + random.below(512);
                if slot < pool.len() { pool[slot] = data } else { pool.push(data) }
            }
        }
    }
    println!("{}: {runs} runs", target.name);
}

fn mutate(data: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut Random) {
    let at = random.below(data.len() + 1);
    match random.below(5) {
        0 => {
            let token = TOKENS[random.below(TOKENS.len())];
            data.splice(at..at, token.bytes());
        }
        1 => {
            let token = TOKENS[random.below(TOKENS.len())];
            data.splice(at..(at + 1).min(data.len()), token.bytes());
        }
        2 => {
            let upto = (at + 1 + random.below(8)).min(data.len());
            data.drain(at.min(upto)..upto);
        }
        3 => {
            let other = &pool[random.below(pool.len())];
            let from = random.below(other.len() + 1);
            data.splice(at.., other[from..].iter().copied());
        }
        _ => {
            let from = random.below(data.len() + 1);
            let piece = data[from.min(at)..from.max(at)].to_vec();
            data.splice(at..at, piece);
        }
    }
}
