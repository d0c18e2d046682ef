//! Perplexity against its definition, on the tiny checkpoints.

use openwork_llm::Checkpoint;
use openwork_llm::evaluate::{Bos, Options, ScoredWindows, evaluate};
use openwork_llm::generate::{Sampling, StopReason, generate};
use openwork_llm::model::{Decoder, Model, Storage};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const TEXT: &str = "the open work of a wall ( lets ) the light in , and the wind out .\n\n\
    light @-@ work is not heavy work ; a wall with no light is a wall .\n";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

fn options(seq_len: usize) -> Options {
    Options { seq_len: Some(seq_len), ..Options::default() }
}

#[test]
fn perplexity_is_the_mean_loss_of_the_logits() {
    for name in ["llama", "gemma3"] {
        let checkpoint = Checkpoint::open(&folder(name)).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        let tokens = checkpoint.tokenizer().expect("a tokenizer").encode(TEXT).expect("tokens");
        let mut decoder = Decoder::load(&model, Storage::F32).expect("a decoder");
        let (mut nats, mut count) = (0.0, 0);
        for window in tokens.chunks_exact(12) {
            decoder.reset();
            let logits = decoder.all_logits(window).expect("logits");
            for t in 1..window.len() {
                let row = logits.row(t - 1).iter().map(|&x| f64::from(x));
                let sum: f64 = row.map(f64::exp).sum();
                nats += sum.ln() - f64::from(logits.row(t - 1)[window[t] as usize]);
                count += 1;
            }
        }
        let mut steps = Vec::new();
        let got = evaluate(&model, TEXT, &options(12), &mut |p| steps.push((p.done, p.total)))
            .expect("an evaluation");
        assert_eq!((got.tokens, got.windows, got.seq_len), (count, tokens.len() / 12, 12));
        assert!((got.nats - nats).abs() < 1e-4 * nats, "{} for {nats}", got.nats);
        assert!((got.token_perplexity().ln() - nats / count as f64).abs() < 1e-4);
        assert!((got.word_perplexity().ln() * got.words as f64 - got.nats).abs() < 1e-9 * got.nats);
        let total = got.windows * model.config().layers;
        assert_eq!(steps.last(), Some(&(total, total)));
    }
}

#[test]
fn windows_account_for_every_byte_and_word_they_score() {
    let checkpoint = Checkpoint::open(&folder("llama")).expect("a checkpoint");
    let tokenizer = checkpoint.tokenizer().expect("a tokenizer");
    let (tokens, ends) = tokenizer.encode_with_ends(TEXT).expect("tokens");
    assert_eq!(tokens, tokenizer.encode(TEXT).expect("tokens"));
    assert_eq!(ends.last(), Some(&TEXT.len()));

    // One window over everything: all but the first token.
    let n = tokens.len();
    let whole = ScoredWindows::new(&tokenizer, TEXT, n, &options(n)).expect("one window");
    assert_eq!((whole.windows.len(), whole.tokens), (1, n - 1));
    assert_eq!(whole.bytes, TEXT.len() - ends[0]);
    assert_eq!(whole.words, TEXT.split_whitespace().count() - 1);

    // Two windows: what the first tokens own is not counted.
    let half = n / 2;
    let two = ScoredWindows::new(&tokenizer, TEXT, half, &options(half)).expect("two windows");
    let owned = |i: usize| ends[i] - if i == 0 { 0 } else { ends[i - 1] };
    assert_eq!(two.bytes, ends[2 * half - 1] - owned(0) - owned(half));

    // At most so many tokens.
    let most = Options { max_tokens: Some(half + 1), ..options(half) };
    let one = ScoredWindows::new(&tokenizer, TEXT, half, &most).expect("one window");
    assert_eq!((one.windows.len(), one.bytes), (1, ends[half - 1] - ends[0]));

    // Detokenized: fewer tokens to read, the words and bytes of the original.
    let read = openwork_llm::detokenize::wikitext(TEXT);
    let n = tokenizer.encode(read.text()).expect("tokens").len();
    let lm_eval = Options { detokenize: true, ..options(n) };
    let scored = ScoredWindows::new(&tokenizer, TEXT, n, &lm_eval).expect("one window");
    assert_eq!((scored.bytes, scored.words), (whole.bytes, whole.words));
}

#[test]
fn bos_goes_where_it_is_asked_for() {
    let checkpoint = Checkpoint::open(&folder("llama")).expect("a checkpoint");
    let tokenizer = checkpoint.tokenizer().expect("a tokenizer");
    let bos = tokenizer.bos().expect("a token that begins texts");
    let (tokens, ends) = tokenizer.encode_with_ends(TEXT).expect("tokens");
    let scored = |length: usize, bos: Option<Bos>| {
        ScoredWindows::new(&tokenizer, TEXT, length, &Options { bos, ..options(length) })
            .expect("windows")
    };
    // This tokenizer adds none by itself.
    assert_eq!(scored(9, None).bos, Bos::None);
    assert_eq!(scored(9, None).windows.concat(), tokens[..tokens.len() / 9 * 9]);
    // One token more than the text: all of it is scored, either way.
    for place in [Bos::Each, Bos::First] {
        let all = scored(tokens.len() + 1, Some(place));
        assert_eq!(all.windows, [[&[bos], &tokens[..]].concat()]);
        assert_eq!((all.tokens, all.bytes, all.bos), (tokens.len(), TEXT.len(), place));
        assert_eq!(all.words, TEXT.split_whitespace().count());
    }
    let each = scored(9, Some(Bos::Each));
    assert!(each.windows.iter().all(|window| window[0] == bos));
    assert_eq!(each.windows.iter().flat_map(|w| &w[1..]).count(), each.tokens);
    assert_eq!(each.bytes, ends[each.tokens - 1]);
    let first = scored(9, Some(Bos::First));
    let read = first.windows.concat();
    assert_eq!((read[0], &read[1..]), (bos, &tokens[..read.len() - 1]));
    // What the first tokens of the later windows own is not scored.
    let lost: usize = (1..first.windows.len()).map(|w| ends[9 * w - 1] - ends[9 * w - 2]).sum();
    assert_eq!(first.bytes, ends[read.len() - 2] - lost);

    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/gguf/qwen2.gguf");
    let tokenizer = Checkpoint::open(&gguf).expect("a file").tokenizer().expect("a tokenizer");
    let asked = Options { bos: Some(Bos::First), ..options(9) };
    assert_eq!(
        ScoredWindows::new(&tokenizer, TEXT, 9, &asked).expect_err("a refusal").to_string(),
        "the tokenizer has no BOS token to add to the first window; use `none`"
    );
}

#[test]
fn texts_and_windows_that_cannot_be_scored_are_refused() {
    let checkpoint = Checkpoint::open(&folder("llama")).expect("a checkpoint");
    let model = Model::open(&checkpoint).expect("a model");
    let refusal = |text: &str, seq_len: usize| {
        let result = evaluate(&model, text, &options(seq_len), &mut |_| {});
        result.expect_err("a refusal").to_string()
    };
    assert_eq!(refusal(TEXT, 0), "a window of 0 tokens predicts nothing; use at least 2 tokens");
    assert_eq!(refusal(TEXT, 1), "a window of 1 token predicts nothing; use at least 2 tokens");
    assert!(refusal(TEXT, 65).contains("65 tokens exceed the model's limit of 64"));
    assert!(refusal("short", 60).contains("fewer than one window of 60"));
}

#[test]
fn generation_is_greedy_or_repeats_by_seed() {
    for name in ["qwen2", "mistral"] {
        let checkpoint = Checkpoint::open(&folder(name)).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        let tokenizer = checkpoint.tokenizer().expect("a tokenizer");
        let mut decoder = Decoder::load(&model, Storage::Half).expect("a decoder");
        let mut run = |choice, most| {
            let mut shown = String::new();
            let mut watch = |text: &str| {
                shown.push_str(text);
                ControlFlow::Continue(())
            };
            let made = generate(&mut decoder, &tokenizer, "the wall", most, choice, &mut watch);
            let made = made.expect("a text");
            assert_eq!(made.text, shown);
            made
        };
        let greedy = run(Sampling::Greedy, 10);
        assert_eq!(greedy.tokens, run(Sampling::Greedy, 10).tokens);
        let sampled =
            |seed| Sampling::Sampled { temperature: 1.5, top_k: Some(50), top_p: 0.9, seed };
        assert_eq!(run(sampled(1), 12).tokens, run(sampled(1), 12).tokens);
        assert_ne!(run(sampled(1), 12).tokens, run(sampled(2), 12).tokens);
        assert_eq!(run(Sampling::Greedy, 0).tokens.len(), 0);
        // The last place the model has is filled, and its token is still chosen.
        let long = run(Sampling::Greedy, 1000);
        if long.stop == StopReason::MaxPositions {
            assert_eq!(long.prompt_tokens + long.tokens.len(), model.config().max_positions + 1);
        }

        // Greedy is the largest logit of a whole forward.
        let mut tokens = tokenizer.encode("the wall").expect("tokens");
        let mut whole = Decoder::load(&model, Storage::Half).expect("a decoder");
        for &token in &greedy.tokens {
            whole.reset();
            let logits = whole.next(&tokens).expect("logits");
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert!(logits[token as usize] >= most - 1e-4 * most.abs());
            tokens.push(token);
        }
        let empty = generate(&mut whole, &tokenizer, "", 3, Sampling::Greedy, &mut |_| {
            ControlFlow::Continue(())
        });
        assert_eq!(
            empty.expect_err("a refusal").to_string(),
            "the prompt is empty; pass at least one word"
        );
    }
}
