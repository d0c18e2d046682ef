//! The fuzz target for spec text under a mutation loop that knows the language's
//! tokens; `OPENWORK_FUZZ_CASES` sets how many texts it tries.

#[path = "../../../fuzz/src/spec.rs"]
mod spec;

/// The default number of texts.
const CASES: u64 = 2000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// Words, numbers and single characters, white space with what precedes it.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    for c in text.chars() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        match tokens.last_mut() {
            Some(last) if last.chars().all(word) && word(c) || c == ' ' => last.push(c),
            _ => tokens.push(c.to_string()),
        }
    }
    tokens
}

const ODD: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "4",
    "8",
    "16",
    "_",
    "M",
    "K",
    "K/2",
    "*",
    "/",
    "%",
    "(",
    ")",
    ",",
    ":",
    "|",
    "~",
    "+",
    "@",
    "&",
    "->",
    "=",
    ";",
    "#",
    "\n",
    "é",
    "-",
    ".5",
    "18446744073709551615",
    "9223372036854775807",
    " keep 1 ",
    " pad (1,3) ",
    " in ",
    " perm (1,0)",
    "scope (1,4) ",
];

fn mutated(pool: &[Vec<String>], random: &mut Random) -> String {
    let mut text = pool[random.below(pool.len())].clone();
    for _ in 0..=random.below(4) {
        let other = &pool[random.below(pool.len())];
        let at = random.below(text.len() + 1);
        match random.below(6) {
            0 => text.insert(at, ODD[random.below(ODD.len())].to_string()),
            1 if at < text.len() => text[at] = ODD[random.below(ODD.len())].to_string(),
            2 if at < text.len() => drop(text.remove(at)),
            3 if !other.is_empty() && at < text.len() => {
                text[at] = other[random.below(other.len())].clone();
            }
            4 => {
                let from = random.below(other.len());
                let to = from + random.below(other.len() - from + 1);
                text.splice(at..at, other[from..to].iter().cloned());
            }
            _ if text.len() > 1 => {
                let (a, b) = (at.min(text.len() - 1), random.below(text.len()));
                text.swap(a, b);
            }
            _ => {}
        }
    }
    text.concat()
}

#[test]
fn no_text_makes_it_panic() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let (cases, seed) = (number("OPENWORK_FUZZ_CASES"), number("OPENWORK_FUZZ_SEED"));
    let pool: Vec<Vec<String>> = spec::SEEDS.iter().map(|seed| tokens(seed)).collect();
    let mut random = Random(seed.unwrap_or(1));
    let (cases, mut read) = (cases.unwrap_or(CASES), 0u64);
    for _ in 0..cases {
        let text = mutated(&pool, &mut random);
        let failed = std::panic::catch_unwind(|| spec::spec_text(text.as_bytes())).is_err();
        assert!(!failed, "{text:?}");
        read += u64::from(text.parse::<openwork::Pattern>().is_ok());
    }
    println!("{cases} texts, {read} of them patterns");
    assert!(read > 0, "no text was a pattern: the mutations are too wild");
}
