//! Laws of the page, on made-up records.

use super::*;
use crate::format::number;
use crate::recover::CurvePoint;
use proptest::prelude::*;

const LINEARS: [(&str, [usize; 2]); 7] = [
    ("self_attn.q_proj", [576, 576]),
    ("self_attn.k_proj", [192, 576]),
    ("self_attn.v_proj", [192, 576]),
    ("self_attn.o_proj", [576, 576]),
    ("mlp.gate_proj", [1536, 576]),
    ("mlp.up_proj", [1536, 576]),
    ("mlp.down_proj", [576, 1536]),
];

/// The accuracy of a plausible run.
fn fake_task(after_layer: Option<usize>, quality: f64) -> TaskRecord {
    let acc = 0.6 - after_layer.map_or(0.0, |_| 0.1 * quality);
    TaskRecord {
        after_layer,
        name: "arc-easy".to_string(),
        docs: 570,
        acc,
        acc_norm: 0.9 * acc,
        stderr: Some(0.0205),
        perplexity: None,
        sha256: "bb".to_string(),
        seconds: 7.0,
    }
}

/// A plausible run: errors grow with depth, and `quality` scales them.
fn fake(layers: usize, quality: f64) -> Record {
    let error = |layer: usize, i: usize| {
        quality * (0.08 + 0.02 * i as f64 + 0.1 * (layer as f64 + 1.0) / (layers as f64 + 1.0))
    };
    let linear = |layer: usize, i: usize| LinearRecord {
        name: format!("model.layers.{layer}.{}.weight", LINEARS[i].0),
        shape: LINEARS[i].1,
        spec: Some("2:4".to_string()),
        spec_as_written: None,
        method: Some("s-obs".to_string()),
        error: error(layer, i),
        density: 0.5,
        damping: Some(if i < 3 { "diag:0.1" } else { "diag:0.03" }.to_string()),
        seconds: 0.5,
        notes: if layer == 1 { vec!["3 dead columns".to_string()] } else { Vec::new() },
    };
    let layer = |index: usize| LayerRecord {
        index,
        seconds: 6.0,
        forward_seconds: 2.0,
        prune_seconds: 3.5,
        decoder_error: error(index, 4),
        linears: (0..LINEARS.len()).map(|i| linear(index, i)).collect(),
        recovery: Some(LayerRecovery {
            before: error(index, 2),
            after: 0.9 * error(index, 2),
            lr: Some(1e-3),
            tokens: 4096,
            seconds: 3.0,
        }),
    };
    let stage = |stage: &str, curve: Vec<CurvePoint>| RecoveryRecord {
        stage: stage.to_string(),
        before: 0.9,
        after: 0.7,
        seconds: 30.0,
        tokens: 65_536,
        lr: Some(2e-4),
        trials: Vec::new(),
        curve,
    };
    let evaluation = |after_layer: Option<usize>| EvaluationRecord {
        after_layer,
        token_perplexity: 22.75
            * after_layer.map_or(1.0, |l| 1.0 + quality * (l as f64 + 1.0) / 12.0),
        word_perplexity: 40.0,
        tokens: 16_368,
        seconds: 4.0,
    };
    let evaluations = std::iter::once(None).chain((0..layers).step_by(5).map(Some));
    Record {
        similarity: None,
        openwork: "0.1.0".to_string(),
        model: "SmolLM2-135M".to_string(),
        family: "Llama".to_string(),
        spec: "2:4".to_string(),
        method: "s-obs".to_string(),
        options: Options { dtype: "bf16".to_string(), threads: 2, ..Options::default() },
        seed: 0,
        calibration: Calibration {
            text: "c4.jsonl".to_string(),
            samples: 16,
            seq_len: 1024,
            ..Default::default()
        },
        evaluation: Some(EvaluationText {
            text: "wiki.txt".to_string(),
            windows: 16,
            seq_len: 1024,
            tokens: 16_368,
            sha256: "aa".to_string(),
        }),
        sizes: None,
        recovery: vec![
            stage("blocks", Vec::new()),
            stage(
                "model[steps=20]",
                (1..4)
                    .map(|i| CurvePoint { step: 5 * i, loss: Some(0.6), held_out: 0.7 })
                    .collect(),
            ),
        ],
        layers: (0..layers).map(layer).collect(),
        evaluations: evaluations.map(evaluation).collect(),
        tasks: [None, Some(layers.saturating_sub(1))]
            .map(|after| fake_task(after, quality))
            .to_vec(),
        totals: Totals {
            seconds: 312.0,
            peak_rss_bytes: 1 << 30,
            mean_error: 0.15,
            density: 0.5,
            weights: 106_168_320,
        },
        notes: vec!["the tokenizer has no bos token".to_string()],
        passes: Vec::new(),
        cluster: None,
    }
}

fn named(name: &str, record: Record) -> (String, Record) {
    (name.to_string(), record)
}

/// Whether every element is closed by its own name, and nothing is open at the end.
fn balanced(page: &str) -> Result<(), String> {
    const VOID: [&str; 3] = ["meta", "br", "!doctype"];
    let (mut open, mut rest) = (Vec::new(), page);
    while let Some(start) = rest.find('<') {
        let tag = &rest[start + 1..];
        let end = tag.find('>').ok_or("a tag without an end")?;
        let (inside, after) = (&tag[..end], &tag[end + 1..]);
        if inside.contains('<') {
            return Err(format!("a tag in a tag: <{inside}>"));
        }
        let name = inside.trim_start_matches('/').split([' ', '/']).next().unwrap_or("");
        rest = after;
        if inside.starts_with('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes another"));
            }
        } else if !inside.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
            if matches!(name, "style" | "script") {
                rest = &after[after.find(&format!("</{name}")).ok_or("no end")?..];
            }
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("still open: {open:?}")) }
}

fn check(page: &str) {
    if let Err(why) = balanced(page) {
        panic!("{why}");
    }
    // Nothing is loaded: no address, no source, no import, no url but of the page itself.
    for word in ["http:", "https:", "src=", "href", "@import", "<link", "<iframe"] {
        assert!(!page.contains(word), "{word}");
    }
    assert_eq!(page.matches("url(").count(), page.matches("url(#ow-").count());
    assert!(!page.contains("NaN%") && !page.contains("\"NaN\"") && !page.contains("inf\""));
}

#[test]
fn any_number_of_layers_and_runs_makes_a_page() {
    for layers in [0, 1, 2, 30, 100, 300] {
        let page = page(&[named("a", fake(layers, 1.0))]);
        check(&page);
        assert!(page.len() < 60_000 + 4_000 * layers, "{} bytes for {layers}", page.len());
    }
    let several = [fake(0, 1.0), fake(1, 2.0), fake(30, 0.9), fake(12, 0.5)];
    let runs: Vec<_> = several.into_iter().map(|record| named("run", record)).collect();
    for count in 0..=runs.len() {
        check(&page(&runs[..count]));
    }
    let many: Vec<_> =
        (0..20).map(|i| named(&format!("run {i}"), fake(4, 1.0 + i as f64))).collect();
    check(&page(&many));
}

#[test]
fn every_figure_of_every_linear_is_there() {
    let mut record = fake(5, 1.0);
    for (i, layer) in record.layers.iter_mut().enumerate() {
        for (j, linear) in layer.linears.iter_mut().enumerate() {
            linear.error = 0.1 + 0.0101 * (7 * i + j) as f64;
        }
    }
    let page = page(&[named("a", record.clone())]);
    for linear in record.linears() {
        let row = format!("<th scope=\"row\">{}</th><td>", linear.name);
        let at = page.find(&row).unwrap_or_else(|| panic!("{} is missing", linear.name));
        let row = &page[at..at + page[at..].find("</tr>").unwrap()];
        assert!(row.contains(&format!("<td>{}</td>", number(linear.error))), "{row}");
        assert!(page.contains(&format!("error {}&#10;", number(linear.error))));
    }
    for evaluation in &record.evaluations {
        assert!(page.contains(&number(evaluation.token_perplexity)));
    }
    assert!(page.contains("3 dead columns") && page.contains("diag:0.03"));
    assert!(page.contains("<svg width=") && page.contains("class=\"ow\""), "the pattern's picture");
}

#[test]
fn nothing_in_a_record_leaves_its_place() {
    const EVIL: &str = "</script><script>alert('x')</script>\" onload=\"y\" <img> & \u{0}\n";
    let mut record = fake(2, 1.0);
    let evil = || EVIL.to_string();
    record.openwork = evil();
    (record.model, record.family, record.spec, record.method) = (evil(), evil(), evil(), evil());
    record.options.dtype = evil();
    (record.options.include, record.options.exclude) = (Some(evil()), Some(evil()));
    (record.calibration.text, record.calibration.sha256) = (evil(), evil());
    record.evaluation.as_mut().unwrap().text = evil();
    record.recovery[0].stage = evil();
    record.notes = vec![evil()];
    for linear in record.layers.iter_mut().flat_map(|layer| &mut layer.linears) {
        (linear.spec, linear.method, linear.damping) = (Some(evil()), Some(evil()), Some(evil()));
        linear.notes = vec![evil()];
        linear.spec_as_written = Some(format!("{} as written", evil()));
    }
    record.layers[1].linears[0].name = evil();
    for runs in [1, 3] {
        let page = page(&vec![(evil(), record.clone()); runs]);
        check(&page);
        assert_eq!(page.matches("<script").count(), 1);
        assert!(!page.contains("<img") && !page.contains("\" onload"));
    }
}

#[test]
fn layers_may_differ_in_their_linears() {
    let mut a = fake(3, 1.0);
    a.layers[1].linears.truncate(2);
    a.layers[2].linears.clear();
    let mut b = fake(3, 2.0);
    b.layers[0].linears[0].name = "model.layers.0.cross_attn.q_proj.weight".to_string();
    (b.layers[0].linears[1].spec, b.layers[0].linears[1].method) = (None, None);
    let page = page(&[named("a", a), named("b", b)]);
    check(&page);
    // Two projections are called q, so both go by more of their names.
    assert!(page.contains("cross_attn.q_proj</span>") && page.contains("self_attn.q_proj</span>"));
    assert!(page.contains("&#10;dense"));
}

#[test]
fn runs_are_compared_with_the_first_of_their_pattern() {
    let with = |spec: &str, quality: f64| Record { spec: spec.to_string(), ..fake(3, quality) };
    let runs = [
        named("a", with("2:4", 2.0)),
        named("b", with("2:4", 1.0)),
        named("c", with("rows16", 4.0)),
        named("d", with("rows16", 3.0)),
    ];
    let page = page(&runs);
    check(&page);
    let titles = |page: &str| -> Vec<String> {
        let parts = page.split("<h3>").filter_map(|part| part.split_once("</h3>"));
        parts.map(|(title, _)| title.to_string()).filter(|t| t.contains(" vs. ")).collect()
    };
    assert_eq!(titles(&page), ["b vs. a", "d vs. c"]);
    assert!(page.contains("b has a lower error in 21 of 21 linear layers; geometric mean -50.0%."));
    let page = super::page(&runs[..3]);
    assert_eq!(titles(&page), ["b vs. a", "c vs. a"]);
}

/// Titles of the cards of a page.
fn cards(page: &str) -> Vec<&str> {
    page.split("<h3>").filter_map(|part| Some(part.split_once("</h3>")?.0)).collect()
}

#[test]
fn runs_on_different_texts_are_not_ranked_together() {
    let on = |text: &str, factor: f64| {
        let mut record = fake(3, factor);
        let evaluation = record.evaluation.as_mut().unwrap();
        (evaluation.text, evaluation.sha256) = (text.to_string(), text.to_string());
        for evaluation in &mut record.evaluations {
            evaluation.token_perplexity *= text.len() as f64;
        }
        record
    };
    let alike = [named("a", on("wiki", 1.0)), named("b", on("wiki", 2.0))];
    assert_eq!(warnings(&alike), Vec::<String>::new());
    let bold =
        |page: &str| page.matches("<td class=\"share\">").count() > 0 && page.contains("<span><b>");
    assert!(bold(&page(&alike)));

    let runs = [named("a", on("wiki", 1.0)), named("b", on("c4", 2.0))];
    let said = warnings(&runs);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("not ranked together"), "{said:?}");
    assert!(said[0].contains("a: wiki, 16 windows of 1,024 tokens, dense perplexity 91.00"));
    let page = page(&runs);
    check(&page);
    assert!(page.contains("class=\"warning\"") && !bold(&page));
    let titles = cards(&page);
    for text in ["wiki", "c4"] {
        let title = format!("Perplexity on {text}, 16 windows of 1,024 tokens");
        assert!(titles.contains(&title.as_str()), "{titles:?}");
    }
    assert!(page.contains("</svg>dense 91.00</li>") && page.contains("</svg>dense 45.50</li>"));
}

#[test]
fn each_difference_between_runs_has_its_warning() {
    let differ = |change: &dyn Fn(&mut Record)| {
        let mut other = fake(2, 1.0);
        change(&mut other);
        warnings(&[named("a", fake(2, 1.0)), named("b", other)])
    };
    assert!(differ(&|_| ()).is_empty());
    assert!(differ(&|r| r.seed = 1).is_empty(), "the windows are the same");
    let evaluated = |said: Vec<String>| {
        assert!(said.len() == 1 && said[0].contains("evaluation text"), "{said:?}");
    };
    evaluated(differ(&|r| r.evaluation.as_mut().unwrap().seq_len = 512));
    evaluated(differ(&|r| r.evaluation.as_mut().unwrap().sha256 = "bb".to_string()));
    evaluated(differ(&|r| r.evaluations[0].token_perplexity = 30.0));
    let said = differ(&|r| r.calibration.sha256 = "bb".to_string());
    assert!(said.len() == 1 && said[0].contains("calibrated on different windows"), "{said:?}");
    // Records of earlier versions do not name the text: the number of tokens and
    // the dense perplexity decide.
    assert!(differ(&|r| r.evaluation = None).is_empty());
    evaluated(differ(&|r| {
        r.evaluation = None;
        r.evaluations.iter_mut().for_each(|e| e.tokens = 100);
    }));
    assert!(differ(&|r| (r.evaluation, r.evaluations) = (None, Vec::new())).is_empty());
}

#[test]
fn specs_are_shown_as_the_user_wrote_them() {
    const WRITTEN: &str = "mlp keep 75%";
    const EXPANDED: &str = "blocks gate weight 1: block (1,_) & up weight 1: block (1,_) keep 1152";
    let mut record = fake(2, 1.0);
    record.spec = EXPANDED.to_string();
    for linear in record.layers.iter_mut().flat_map(|layer| &mut layer.linears) {
        linear.spec = Some(EXPANDED.to_string());
        linear.spec_as_written = Some(WRITTEN.to_string());
    }
    assert_eq!(record.spec_as_written(), WRITTEN);
    assert!(summary(&record).contains("spec         mlp keep 75%\n"));
    for runs in [1, 2] {
        let page = page(&vec![named("a", record.clone()); runs]);
        let expanded = EXPANDED.replace('&', "&amp;");
        for (at, _) in page.match_indices(&expanded) {
            let before = &page[..at];
            let hidden = before.ends_with(" title=\"")
                || before.ends_with("<summary>expanded</summary><code>");
            assert!(hidden, "{}", &before[before.len() - 60..]);
        }
        assert!(page.contains(&expanded) && page.contains(&format!(">{WRITTEN}</code>")));
    }
}

#[test]
fn removed_structures_are_told_by_sizes() {
    let mut record = fake(2, 1.0);
    record.totals.density = 1.0;
    let size = |parameters, bytes| ModelSize { parameters, bytes };
    record.sizes = Some(SizeChange { before: size(2000, 4000), after: size(1500, 3000) });
    let said = summary(&record);
    assert!(said.contains("parameters   1,500 (before 2,000)\n"), "{said}");
    assert!(said.contains("size         3.0 kB (before 4.0 kB)\n"), "{said}");
    let page = page(&[named("a", record.clone())]);
    assert!(!said.contains("100%") && !page.contains("<dd>100%</dd>"), "{said}");
    assert!(page.contains("from 2,000 (-25.0%)"));
    // What is left may be sparse as well.
    record.totals.density = 0.5;
    assert!(summary(&record).contains("density      50%"));
}

#[test]
fn a_page_has_no_empty_cards() {
    let mut record = fake(2, 1.0);
    (record.evaluation, record.evaluations, record.notes) = (None, Vec::new(), Vec::new());
    record.tasks.clear();
    for linear in record.layers.iter_mut().flat_map(|layer| &mut layer.linears) {
        (linear.damping, linear.notes) = (None, Vec::new());
    }
    let page = page(&[named("a", record)]);
    for title in ["Perplexity", "Tasks", "Damping", "Notes"] {
        assert!(!cards(&page).contains(&title), "{title}");
    }
    let mut empty = fake(0, 1.0);
    empty.recovery.clear();
    empty.tasks.clear();
    let nothing = super::page(&[named("a", empty)]);
    assert_eq!(cards(&nothing), ["Perplexity", "How it was run", "Notes"]);
}

#[test]
fn tasks_are_beside_perplexity_for_one_run_and_for_several() {
    let (a, mut b) = (fake(2, 1.0), fake(2, 2.0));
    let said = summary(&a);
    assert!(said.contains("tasks        arc-easy 0.5000 (dense 0.6000)\n"), "{said}");
    let alone = page(&[named("a", a.clone())]);
    let row = "<th scope=\"row\">arc-easy</th><td>570</td>\
        <td>0.6000 \u{b1} 0.0205<br><small>0.5400</small></td>\
        <td>0.5000 \u{b1} 0.0205<br><small>0.4500</small></td></tr>";
    assert!(cards(&alone).contains(&"Tasks") && alone.contains(row));
    // Other documents under the same name are another row.
    b.tasks.iter_mut().for_each(|task| task.sha256 = "cc".to_string());
    let both = page(&[named("a", a), named("b", b)]);
    // Both in the comparison, and each in the section of its run.
    assert_eq!(both.matches("<th scope=\"row\">arc-easy</th><td>570</td>").count(), 4);
    check(&both);
}

#[test]
fn the_page_says_how_the_run_was_evaluated() {
    let page = page(&[named("a", fake(2, 1.0))]);
    let row =
        "<dt>evaluation</dt><dd>wiki.txt, 16 windows of 1,024 tokens, 16,368 tokens scored</dd>";
    assert!(page.contains(row));
    assert!(page.contains(&format!("<dt>time</dt><dd>{}</dd>", "5 min 12 s")));
    assert!(summary(&fake(2, 1.0)).contains("time         5 min 12 s\n"));
}

#[test]
fn a_record_that_is_not_finite_can_be_read_again() {
    let mut record = fake(1, 1.0);
    record.evaluations[1].token_perplexity = f64::INFINITY;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("record.json");
    let write = |text: &str| std::fs::write(&file, text).expect("the folder is writable");
    write(&serde_json::to_string(&record).expect("records can be written"));
    let again = Record::read(&file).expect("what was written can be read");
    assert!(again.evaluations[1].token_perplexity.is_nan());
    assert_eq!(again.evaluation, record.evaluation);
    // Records of earlier versions have no text of evaluation and no sizes.
    let mut old = serde_json::to_value(&record).expect("records can be written");
    old.as_object_mut().expect("an object").remove("evaluation");
    write(&old.to_string());
    assert_eq!(Record::read(&file).expect("old records can be read").evaluation, None);
    assert_eq!(again.evaluations[0].token_perplexity, 22.75);
}

#[test]
fn missing_measurements_are_named() {
    let mut record = fake(2, 1.0);
    record.evaluations.clear();
    let alone = page(&[named("a", record.clone())]);
    assert!(alone.contains("not measured"));
    check(&alone);
    check(&page(&[named("a", record.clone()), named("b", record)]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_numbers_make_a_page(values in prop::collection::vec(prop::num::f64::ANY, 1..40), layers in 0usize..4) {
        let mut next = values.iter().copied().cycle();
        let mut draw = || next.next().unwrap_or(0.0);
        let mut record = fake(layers, 1.0);
        for layer in &mut record.layers {
            (layer.seconds, layer.forward_seconds, layer.prune_seconds) = (draw(), draw(), draw());
            layer.decoder_error = draw();
            for linear in &mut layer.linears {
                (linear.error, linear.density, linear.seconds) = (draw(), draw(), draw());
            }
        }
        for evaluation in &mut record.evaluations {
            (evaluation.token_perplexity, evaluation.word_perplexity) = (draw(), draw());
            evaluation.seconds = draw();
        }
        record.totals = Totals { seconds: draw(), mean_error: draw(), density: draw(), peak_rss_bytes: u64::MAX, weights: u64::MAX };
        check(&page(&[named("a", record.clone())]));
        check(&page(&[named("a", record), named("b", fake(3, 1.0))]));
    }
}

#[test]
fn a_page_is_told_from_other_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("report.html");
    assert!(!super::is_page(&path) && !super::is_page(folder.path()));
    std::fs::write(&path, page(&[named("a", fake(2, 1.0))])).expect("the folder is writable");
    assert!(super::is_page(&path));
    std::fs::write(&path, "<!doctype html><title>mine</title>").expect("the folder is writable");
    assert!(!super::is_page(&path));
}

#[test]
fn a_run_that_pruned_no_linear_has_no_negative_error() {
    let mut record = fake(0, 1.0);
    record.totals.mean_error = mean(&[]);
    assert!(summary(&record).contains("mean error   0.0000\n"), "{}", summary(&record));
}
