//! docs/methods.md lists what the tables have.

use openwork::prune::{DAMPING, METHODS, MODIFIERS, Method, MethodInfo, Needs, OptionInfo};

const START: &str = "<!-- methods:";
const END: &str = "<!-- end of methods -->";

fn row(name: &str, option: &OptionInfo, default: &str) -> String {
    let values = option.values.replace(" | ", "`, `");
    let values = if option.values.contains('|') { format!("`{values}`") } else { values };
    format!("| {name} | `{}` | {values} | {default} | {} |\n", option.name, option.help)
}

fn tables() -> String {
    let mut text = String::from("\n| method | what it does | damping |\n|---|---|---|\n");
    let named = |plus: &str, method: &MethodInfo| format!("`{plus}{}`", method.name);
    let all: Vec<(&str, &MethodInfo)> = METHODS
        .iter()
        .map(|method| ("", method))
        .chain(MODIFIERS.iter().map(|method| ("+", method)))
        .collect();
    for (plus, method) in &all {
        let (name, summary) = (named(plus, method), method.summary.replace('|', "\\|"));
        let damping = match method.name.parse::<Method>().map(|method| method.needs()) {
            Ok(Needs::Hessian) => format!("`{}`", method.damping),
            Ok(_) => "none".to_string(),
            // In force for the method that it follows, too.
            Err(_) => format!("`{}`", method.damping),
        };
        text += &format!("| {name} | {summary} | {damping} |\n");
    }
    text += "\n| of | option | values | default | what it does |\n|---|---|---|---|---|\n";
    text += &row("all", &DAMPING, "see above");
    for (plus, method) in &all {
        for option in method.options {
            text += &row(&named(plus, method), option, &format!("`{}`", option.default));
        }
    }
    text + "\n"
}

#[test]
fn the_methods_page_lists_every_method_and_option() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/methods.md");
    let page = std::fs::read_to_string(path).unwrap();
    let start = page.find(START).expect("the start mark");
    let start = start + page[start..].find('\n').expect("a line after it") + 1;
    let end = page.find(END).expect("the end mark");
    let right = format!("{}{}{}", &page[..start], tables(), &page[end..]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, right).unwrap();
    } else {
        assert!(
            page == right,
            "docs/methods.md is old: UPDATE_DOCS=1 cargo test -p openwork-cli --test docs"
        );
    }
}
