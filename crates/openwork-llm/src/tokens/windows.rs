//! Splitting tokens into windows of equal length, as the literature does.

use super::error::TextError;
use openwork::random::SplitMix64;
use std::collections::HashSet;

/// Consecutive, non-overlapping windows of `length` tokens; an incomplete window
/// at the end is dropped. With `bos`, every window is that token followed by
/// `length - 1` tokens of text.
pub fn windows(
    tokens: &[u32],
    length: usize,
    bos: Option<u32>,
) -> Result<Vec<Vec<u32>>, TextError> {
    let text = text_length(tokens, length, bos)?;
    Ok(tokens.chunks_exact(text).map(|window| with_bos(bos, window)).collect())
}

/// `samples` windows of `length` tokens at random positions of the text, as
/// SparseGPT and Wanda sample their calibration data. The positions are
/// distinct; windows may overlap. The same seed gives the same windows.
pub fn random_windows(
    tokens: &[u32],
    length: usize,
    samples: usize,
    seed: u64,
    bos: Option<u32>,
) -> Result<Vec<Vec<u32>>, TextError> {
    let text = text_length(tokens, length, bos)?;
    let starts = tokens.len() - text + 1;
    if samples > starts {
        return Err(TextError::Samples { tokens: tokens.len(), length, starts, samples });
    }
    // Floyd's algorithm: each set of `samples` starts is equally likely.
    let mut random = SplitMix64(seed);
    let mut drawn = HashSet::with_capacity(samples);
    let window = |top: usize| {
        let start = random.below(top as u64 + 1) as usize;
        // If that start is taken, `top` is free: nothing before could draw it.
        let start = if drawn.insert(start) { start } else { top };
        drawn.insert(start);
        with_bos(bos, &tokens[start..start + text])
    };
    Ok((starts - samples..starts).map(window).collect())
}

/// Samples windows for training: rounds of adjacent windows in random order, each round from
/// another random offset, so that no part of the text repeats before nearly all of it was
/// used (a round leaves out fewer tokens than two windows have).
pub fn covering_windows(
    tokens: &[u32],
    length: usize,
    samples: usize,
    seed: u64,
    bos: Option<u32>,
) -> Result<Vec<Vec<u32>>, TextError> {
    let text = text_length(tokens, length, bos)?;
    let starts = tokens.len() - text + 1;
    let mut random = SplitMix64(seed);
    let mut windows = Vec::with_capacity(samples.min(tokens.len()));
    while windows.len() < samples {
        let offset = random.below(starts.min(text) as u64) as usize;
        let mut round: Vec<usize> = (offset..starts).step_by(text).collect();
        for i in (1..round.len()).rev() {
            round.swap(i, random.below(i as u64 + 1) as usize);
        }
        round.truncate(samples - windows.len());
        windows.extend(round.into_iter().map(|at| with_bos(bos, &tokens[at..at + text])));
    }
    Ok(windows)
}

/// Number of text tokens in a window, if the text has that many.
fn text_length(tokens: &[u32], length: usize, bos: Option<u32>) -> Result<usize, TextError> {
    let text = length.saturating_sub(usize::from(bos.is_some()));
    if text == 0 {
        return Err(TextError::Window(length));
    }
    if tokens.len() < text {
        return Err(TextError::Short { tokens: tokens.len(), length });
    }
    Ok(text)
}

fn with_bos(bos: Option<u32>, text: &[u32]) -> Vec<u32> {
    bos.into_iter().chain(text.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_the_text_without_its_rest() {
        let tokens: Vec<u32> = (0..10).collect();
        assert_eq!(windows(&tokens, 4, None).unwrap(), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(
            windows(&tokens, 4, Some(99)).unwrap(),
            [[99, 0, 1, 2], [99, 3, 4, 5], [99, 6, 7, 8]]
        );
    }

    #[test]
    fn random_windows_differ_and_repeat_by_seed() {
        let tokens: Vec<u32> = (0..50).collect();
        let drawn = random_windows(&tokens, 8, 43, 7, None).unwrap();
        // As many samples as starts: every start once.
        let mut starts: Vec<u32> = drawn.iter().map(|window| window[0]).collect();
        starts.sort_unstable();
        assert_eq!(starts, (0..43).collect::<Vec<u32>>());
        let few = |seed| random_windows(&tokens, 8, 5, seed, Some(99)).unwrap();
        assert_eq!(few(1), few(1));
        assert_ne!(few(1), few(2));
        for window in few(3) {
            assert_eq!(window[0], 99);
            assert!(window[1..].windows(2).all(|pair| pair[0] + 1 == pair[1]));
            assert_eq!(window.len(), 8);
        }
    }

    #[test]
    fn starts_are_drawn_evenly() {
        let tokens: Vec<u32> = (0..11).collect();
        let mut hits = [0u32; 10];
        for seed in 0..4000 {
            for window in random_windows(&tokens, 2, 3, seed, None).unwrap() {
                hits[window[0] as usize] += 1;
            }
        }
        // 1200 expected, standard deviation 29: five of them.
        assert!(hits.iter().all(|&hit| hit.abs_diff(1200) < 145), "{hits:?}");
    }

    #[test]
    fn training_windows_cover_the_text_before_they_repeat() {
        for (tokens, length, bos) in
            [(100, 7, None), (64, 8, None), (50, 9, Some(99)), (5, 5, None)]
        {
            let numbers: Vec<u32> = (0..tokens).collect();
            let text = length - usize::from(bos.is_some());
            for seed in 0..20 {
                // A round has at least this many windows.
                let round = (numbers.len() + 1 - text) / text.max(1);
                let drawn = covering_windows(&numbers, length, round.max(1), seed, bos).unwrap();
                let mut seen = vec![0; numbers.len()];
                for window in &drawn {
                    assert_eq!(window.len(), length);
                    assert_eq!(bos.is_some(), window[0] == 99);
                    let words = &window[length - text..];
                    assert!(words.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                    words.iter().for_each(|&word| seen[word as usize] += 1);
                }
                assert!(seen.iter().all(|&count| count <= 1), "{tokens} of {length}: {seen:?}");
                let many = covering_windows(&numbers, length, 40, seed, bos).unwrap();
                assert_eq!((many.len(), &many[..drawn.len()]), (40, &drawn[..]));
                assert_ne!(numbers.len() > 2 * text, many[..20] == many[20..]);
            }
        }
        assert!(covering_windows(&[1, 2], 3, 1, 0, None).is_err());
    }

    #[test]
    fn a_text_too_short_is_refused_with_the_numbers() {
        let tokens = [1, 2, 3];
        assert_eq!(
            windows(&tokens, 4, None).unwrap_err().to_string(),
            "the text has 3 tokens, fewer than one window of 4; \
             use a longer text or a shorter window"
        );
        assert_eq!(
            random_windows(&tokens, 2, 3, 0, None).unwrap_err().to_string(),
            "the text has 3 tokens, enough for 2 different windows of 2, but 3 samples were \
             requested; use a longer text or fewer samples"
        );
        assert_eq!(
            windows(&tokens, 1, Some(0)).unwrap_err().to_string(),
            "a window of 1 token leaves no space for text; use a longer window"
        );
        assert!(windows(&tokens, 0, None).is_err());
        assert_eq!(windows(&tokens, 4, Some(0)).unwrap(), [[0, 1, 2, 3]]);
    }
}
