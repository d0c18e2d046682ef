//! A design as text for other places: command, recipe, Python, Rust, and a page of its own.

use super::Design;
use openwork::viz::{self, escape_html};
use serde_json::{Value, json};

/// The design in every language.
pub(crate) fn snippets(design: &Design) -> Value {
    let spec = design.request.spec.trim();
    let one_line = spec.split_whitespace().collect::<Vec<_>>().join(" ");
    // A comment would swallow the rest of a joined line.
    let text = if spec.contains('#') { design.pattern.to_string() } else { one_line };
    let tensors = design.tensors();
    let single = design.pattern.members().is_empty();
    let tuple = |dims: &[usize]| {
        let all: Vec<_> = dims.iter().map(ToString::to_string).collect();
        format!("({}{})", all.join(", "), if all.len() == 1 { "," } else { "" })
    };
    let quoted = json!(text).to_string();
    let shapes: Vec<String> =
        design.request.shapes.iter().map(|s| format!("--shape '{s}'")).collect();
    let command = format!("openwork show '{}' {}", text.replace('\'', r"'\''"), shapes.join(" "));
    let python = match single {
        true => format!(
            "import openwork\n\nspec = openwork.Spec.parse({quoted}).bind({})\nprint(spec.density)\n\n\
             # weights: a numpy array or a torch tensor, changed in place; inputs: [samples, columns]\n\
             # result = openwork.prune(weights, {quoted}, inputs=inputs)\n",
            tuple(tensors[0].1)
        ),
        false => {
            let shapes: Vec<_> =
                tensors.iter().map(|(name, dims)| format!("{name}={}", tuple(dims))).collect();
            format!(
                "import openwork\n\nspec = openwork.Spec.parse({quoted}).bind({})\nprint(spec.density)\n",
                shapes.join(", ")
            )
        }
    };
    let list = |dims: &[usize]| {
        let all: Vec<_> = dims.iter().map(ToString::to_string).collect();
        format!("[{}]", all.join(", "))
    };
    let bind = match single {
        true => format!("bind(&{})", list(tensors[0].1)),
        false => {
            let all: Vec<_> =
                tensors.iter().map(|(name, dims)| format!("({name:?}, &{})", list(dims))).collect();
            format!("bind_all(&[{}])", all.join(", "))
        }
    };
    let rust = format!("let spec = {text:?}.parse::<openwork::Pattern>()?.{bind}?;\n");
    json!({
        "text": text,
        "command": command,
        "recipe": format!("spec = {quoted}\n"),
        "python": python,
        "rust": rust,
    })
}

/// The design as a page of its own: the drawing and the fact sheet, without scripts.
pub(crate) fn page(design: &Design) -> String {
    let title = escape_html(&design.spec.text().chars().take(200).collect::<String>());
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"generator\" content=\"openwork\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} · openwork</title>\n\
         <style>body{{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}}\
         pre{{overflow-x:auto}}svg{{max-width:100%;height:auto}}\
         @media (prefers-color-scheme:dark){{body{{background:#0d1117;color:#e6edf3}}}}</style>\n\
         </head>\n<body>\n<main>\n<h1><code>{title}</code></h1>\n{}\n<pre>{}</pre>\n</main>\n</body>\n</html>\n",
        viz::svg(&design.spec, design.request.seed),
        escape_html(&viz::sheet(&design.spec)),
    )
}
