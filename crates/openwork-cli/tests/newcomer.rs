//! Tasks, chat and names on the Hub, as a user runs them.

#[path = "../../../testdata/hub_server.rs"]
mod hub_server;

use hub_server::Server;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn model() -> String {
    testdata("models/llama").display().to_string()
}

fn openwork(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_openwork"));
    for name in ["HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    command.args(args).envs(environment.iter().copied()).output().expect("the command runs")
}

/// What a command prints that must succeed.
fn printed(args: &[&str], environment: &[(&str, &str)]) -> String {
    let output = openwork(args, environment);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {words}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The error of a command that must end with `code`.
fn refused(args: &[&str], environment: &[(&str, &str)], code: i32) -> String {
    let output = openwork(args, environment);
    let words = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{args:?}: {words}");
    let error = words.lines().last().unwrap_or_default().to_string();
    assert!(error.starts_with("error: "), "{words}");
    error
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("the folder is writable");
    path.display().to_string()
}

const DOCUMENTS: &str = concat!(
    "{\"context\": \"the wall\", \"choices\": [\" is open\", \" is not\", \" wind\"], \"gold\": 1}\n",
    "{\"context\": [\"the light\", \"a light\"], \"choices\": [\" is\", \" is\"], \"gold\": 0}\n",
    "\n",
    "{\"context\": \"\", \"choices\": [\"the\", \"a\"], \"gold\": 1}\n",
);

#[test]
fn tasks_are_scored_by_eval_and_by_prune() {
    let folder = tempfile::tempdir().expect("a folder");
    let cats = write(folder.path(), "cats.jsonl", DOCUMENTS);
    let last = write(
        folder.path(),
        "last.jsonl",
        "{\"context\": \"a\", \"choices\": [\" b\"], \"gold\": 0}\n",
    );
    let details = folder.path().join("details.jsonl").display().to_string();
    let (model, text) =
        (model(), write(folder.path(), "text.txt", &"the open work of a wall ".repeat(40)));
    let args = ["eval", &model, "--task", &cats, "--task", &last, "--details", &details, "--json"];
    let found: Value = serde_json::from_str(&printed(&args, &[])).expect("one object");
    let tasks = found["tasks"].as_array().expect("a list");
    let names: Vec<_> = tasks.iter().map(|task| (&task["name"], &task["docs"])).collect();
    assert_eq!(names, [(&json!("cats"), &json!(3)), (&json!("last"), &json!(1))]);
    assert!(tasks[0].get("perplexity").is_none() && tasks[1]["perplexity"].is_number());
    assert!(tasks[0]["stderr"].is_number() && tasks[1]["stderr"].is_null());

    // The accuracies are those of the log-likelihoods in the details.
    let lines = std::fs::read_to_string(&details).expect("details");
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let counts: Vec<usize> = lines.iter().map(|l| l["ll"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [3, 2, 2, 1]);
    let golds = [1, 0, 1];
    let right = lines.iter().zip(golds).filter(|(line, gold)| {
        let ll: Vec<f64> =
            line["ll"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        (0..ll.len()).all(|i| ll[i] < ll[*gold] || i == *gold || (ll[i] == ll[*gold] && i > *gold))
    });
    assert_eq!(tasks[0]["acc"], json!(right.count() as f64 / 3.0));

    // A limit, a text beside the tasks, and the table.
    let args = [
        "eval",
        &model,
        "--task",
        &cats,
        "--limit",
        "2",
        "--text",
        &text,
        "--seq-len",
        "16",
        "--json",
    ];
    let found: Value = serde_json::from_str(&printed(&args, &[])).expect("one object");
    assert_eq!(found["tasks"][0]["docs"], 2);
    assert!(found["token_perplexity"].is_number());
    let table = printed(&["eval", &model, "--task", &cats], &[]);
    assert!(table.starts_with("task  docs"), "{table}");

    // In a run: of the dense and of the pruned model, and in its page.
    let out = folder.path().join("pruned").display().to_string();
    let args = [
        "prune",
        &model,
        "--spec",
        "2:4",
        "--method",
        "magnitude",
        "--calib",
        &text,
        "--samples",
        "2",
        "--seq-len",
        "16",
        "--single-tokens",
        "0",
        "--task",
        &cats,
        "--task",
        &last,
        "--task-limit",
        "2",
        "--out",
        &out,
        "--json",
    ];
    let record: Value = serde_json::from_str(&printed(&args, &[])).expect("one object");
    let tasks = record["tasks"].as_array().expect("a list");
    let after: Vec<_> = tasks.iter().map(|task| task["after_layer"].is_null()).collect();
    assert_eq!(after, [true, true, false, false]);
    let args = ["eval", &out, "--task", &cats, "--limit", "2", "--json"];
    let again: Value = serde_json::from_str(&printed(&args, &[])).expect("one object");
    assert_eq!(again["tasks"][0]["acc"], tasks[2]["acc"]);
    let page = folder.path().join("page.html").display().to_string();
    printed(&["report", &out, "--out", &page], &[]);
    assert!(std::fs::read_to_string(&page).expect("a page").contains(">cats</th><td>2</td>"));
}

#[test]
fn bad_tasks_are_refused_with_their_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model();
    let good = "{\"context\": \"a\", \"choices\": [\" b\"], \"gold\": 0}\n";
    let cases = [
        (
            "{\"context\": \"a\", \"choices\": [\" b\"], \"gold\": 1}",
            "line 2: gold is 1, but there is 1 choice",
        ),
        ("{\"context\": \"a\", \"choices\": [\"\"], \"gold\": 0}", "line 2: choice 0 is empty"),
        ("{\"text\": \"a\"}", "line 2: there is no `choices`"),
    ];
    for (line, words) in cases {
        let task = write(folder.path(), "bad.jsonl", &format!("{good}{line}\n"));
        let error = refused(&["eval", &model, "--task", &task], &[], 2);
        assert!(error.contains(words), "{error}");
    }
    let long = format!(
        "{{\"context\": \"{}\", \"choices\": [\" b\"], \"gold\": 0}}\n",
        "wall ".repeat(99)
    );
    let long = write(folder.path(), "long.jsonl", &long);
    let error = refused(&["eval", &model, "--task", &long], &[], 2);
    assert!(error.contains("long.jsonl: line 1: choice 0 and its context are"), "{error}");
    let out = folder.path().join("out").display().to_string();
    let args =
        ["prune", &model, "--spec", "2:4", "--calib", "demo", "--task", &long, "--out", &out];
    assert!(refused(&args, &[], 2).contains("long.jsonl: line 1"));
    assert!(!Path::new(&out).exists());
    let neither = openwork(&["eval", &model], &[]);
    let neither = String::from_utf8_lossy(&neither.stderr).into_owned();
    assert!(neither.contains("--text <TEXT>|--task <FILE>"), "{neither}");
    let none = refused(&["eval", &model, "--task", "no-such.jsonl"], &[], 2);
    assert!(none.contains("no-such.jsonl: no such file"), "{none}");
    let details = ["eval", &model, "--task", &long, "--details", &long];
    assert!(refused(&details, &[], 2).contains("long.jsonl"));
}

#[test]
fn a_model_answers_by_its_chat_template() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("chatty");
    std::fs::create_dir(&place).expect("a folder");
    for entry in std::fs::read_dir(testdata("models/llama")).expect("a folder").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), place.join(entry.file_name())).expect("a copy");
        }
    }
    let chatty = place.display().to_string();
    let missing = refused(&["generate", &chatty, "--chat", "hello"], &[], 2);
    assert!(missing.contains("the model has no chat template"), "{missing}");
    let template =
        "{% for m in messages %}\n{{ m.role }} : {{ m.content }}\n{% endfor %}\nassistant :";
    write(&place, "chat_template.jinja", template);
    let chat =
        ["generate", &chatty, "--chat", "the wall", "-n", "5", "--json", "--system", "be open"];
    let chat: Value = serde_json::from_str(&printed(&chat, &[])).expect("one object");
    let prompt = "system : be open\nuser : the wall\nassistant :";
    let plain = ["generate", &chatty, prompt, "-n", "5", "--json"];
    let plain: Value = serde_json::from_str(&printed(&plain, &[])).expect("one object");
    assert_eq!((&chat["text"], &chat["prompt_tokens"]), (&plain["text"], &plain["prompt_tokens"]));
    write(&place, "chat_template.jinja", "{{ raise_exception('no system role') }}");
    let failed = refused(&["generate", &chatty, "--chat", "hello"], &[], 2);
    assert!(failed.contains("the model's chat template fails: no system role"), "{failed}");
}

#[test]
fn names_on_the_hub_work_in_commands() {
    const SECRET: &str = "hf_donttell";
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start();
    server.add_folder("models/org/tiny", &testdata("models/llama"));
    server.add(
        "datasets/org/texts",
        "a.jsonl",
        b"{\"text\": \"the open work of a wall lets the light in\"}\n".repeat(20).as_slice(),
    );
    server.add("datasets/org/texts", "b.jsonl", b"{\"body\": \"x\"}\n");
    server.set(|state| state.token = Some(SECRET.to_string()));
    let home = folder.path().join("home").display().to_string();
    let out = folder.path().join("pruned").display().to_string();
    let online =
        [("HF_HOME", home.as_str()), ("HF_ENDPOINT", &server.endpoint), ("HF_TOKEN", SECRET)];
    let text = "datasets:org/texts/a.jsonl";
    let prune = [
        "prune",
        "org/tiny",
        "--spec",
        "2:4",
        "--method",
        "magnitude",
        "--calib",
        text,
        "--eval",
        text,
        "--eval-seq-len",
        "16",
        "--samples",
        "2",
        "--seq-len",
        "16",
        "--single-tokens",
        "0",
        "--out",
        &out,
        "--json",
    ];
    let output = openwork(&prune, &online);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let record = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(!said.contains(SECRET) && !record.contains(SECRET));
    let record: Value = serde_json::from_str(&record).expect("one object");
    assert_eq!(
        (&record["model"], &record["calibration"]["text"]),
        (&json!("org/tiny"), &json!("a.jsonl"))
    );
    let (_, large) = server.requests();
    assert!(large.iter().all(|request| request.header("authorization").is_none()));

    // From the cache, without the server.
    let away = [("HF_HOME", home.as_str()), ("HF_ENDPOINT", "http://127.0.0.1:1")];
    let eval = ["eval", "org/tiny", "--text", text, "--seq-len", "16", "--json", "--offline"];
    let found: Value = serde_json::from_str(&printed(&eval, &away)).expect("one object");
    assert_eq!(found["token_perplexity"], record["evaluations"][0]["token_perplexity"]);
    assert_eq!(server.requests().0.len(), 0);
    // Without --offline a server that cannot be reached is a note, if all is there.
    let output = openwork(&eval[..7], &away);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("using org/tiny from the cache"));

    // A mistake is told before anything is asked of the server.
    let parts = |spec, method, out| {
        ["prune", "org/tiny", "--calib", text, "--spec", spec, "--method", method, "--out", out]
    };
    let fresh = folder.path().join("fresh").display().to_string();
    for (args, words) in [
        (parts("2:", "admm", &fresh), "expected a number"),
        (parts("2:4", "best", &fresh), "there is no method `best`"),
        (parts("2:4", "admm", &out), "the folder is not empty"),
    ] {
        let output = openwork(&args, &online);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with("error: ") && error.contains(words), "{error}");
    }
    assert_eq!(server.requests().0.len(), 0);

    let page = folder.path().join("page.html").display().to_string();
    let mut frontier = vec!["frontier", "org/tiny", "--text", text, "--values", "bf16"];
    frontier.extend(["--seq-len", "16", "--tokens", "2", "--turns", "1", "--out", &page, "--json"]);
    let found: Value = serde_json::from_str(&printed(&frontier, &online)).expect("one object");
    assert_eq!(found["model"], "org/tiny");

    let field = refused(&["eval", "org/tiny", "--text", "datasets:org/texts/b.jsonl"], &online, 2);
    assert!(field.contains("b.jsonl: line 1: missing field `text`"), "{field}");
    let none = refused(&["inspect", "org/none"], &online, 2);
    assert!(none.contains("org/none: no such file or folder, and http://"), "{none}");
    let token = refused(&["inspect", "org/tiny"], &online[..2], 2);
    assert!(token.ends_with("for a private one, set HF_TOKEN"), "{token}");
    let offline = refused(&["inspect", "org/none", "--offline"], &online, 2);
    assert!(offline.contains("run once without --offline"), "{offline}");
    let bare = refused(&["eval", "tiny", "--text", text], &online, 2);
    assert!(bare.ends_with("is written with its owner, org/tiny"), "{bare}");
    let bare = refused(&["eval", "org/tiny", "--text", "org/texts/a.jsonl"], &online, 2);
    assert!(bare.ends_with("is written datasets:org/texts/a.jsonl"), "{bare}");
}
