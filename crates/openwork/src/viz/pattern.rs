//! Draws a spec as SVG: structure on top, an example mask below.

use super::legend::{LINE, Legend};
use super::panels;
use super::scene::{COLORS, Scene};
use super::svg::Svg;
use crate::spec::Spec;
use std::fmt::Display;

/// Fill colors of blocks. Consecutive ones differ in hue and lightness, and all
/// contrast with white and black.
const FILLS: [&str; COLORS] =
    ["#7cbdf0", "#f2a541", "#52b788", "#d883b7", "#efd95b", "#4f7cc9", "#e0715c", "#a18be0"];

/// Fonts that need no download.
const SANS: &str = "system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif";
const MONO: &str = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace";

/// Margin around the drawing.
pub(crate) const MARGIN: usize = 20;
/// Minimum width, which the legend needs.
const NARROWEST: usize = 440;

/// Draws a spec: for each tensor its structure (fill: block; outline and number:
/// scope; hatched: outside the domain; dotted: padding), below it an example
/// mask (dark: pruned), then a legend. `seed` selects the example mask.
///
/// ```
/// let spec = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[8, 16]).unwrap();
/// assert!(openwork::viz::svg(&spec, 0).starts_with("<svg xmlns="));
/// ```
pub fn svg(spec: &Spec, seed: u64) -> String {
    let scene = Scene::new(spec, seed);
    let panels = panels::arrange(&scene);
    let drawn = panels.iter().map(|panel| panel.x + panel.width).max().unwrap_or(0);
    let below = panels.iter().map(|panel| panel.y + panel.height).max().unwrap_or(0);
    let legend = Legend::new(spec, &scene, (drawn + MARGIN).max(NARROWEST));
    let (width, height) = (legend.width, below + LINE + legend.height() + MARGIN / 2);
    Svg::document((width, height), "ow", |svg| {
        svg.text("title", &[], spec.text());
        svg.text("style", &[], &style(scene.has_levels()));
        svg.inside("defs", &[], |svg| patterns(svg, scene.has_levels()));
        svg.empty("rect", &[("class", &"bg"), ("width", &width), ("height", &height)]);
        for panel in &panels {
            panels::draw(svg, &scene, panel);
        }
        legend.draw(svg, below + LINE);
    })
}

/// The style sheet; `levels` adds what only specs with levels need.
fn style(levels: bool) -> String {
    let mut css = format!(
        "\n.ow text{{font:12px {SANS};fill:#1f2328}}\n.ow .m{{font-family:{MONO}}}\n\
         .ow .h{{font-weight:600;font-size:13px}}\n.ow .d{{fill:#656d76}}\n\
         .ow .n{{font:600 9px {SANS};fill:#14181d;text-anchor:start}}\n\
         .ow .r{{font-size:9px;fill:#656d76}}\n.ow .e{{text-anchor:end}}\n.ow .c{{text-anchor:middle}}\n\
         .ow .bg{{fill:#ffffff}}\n.ow .cut{{fill:#3a4048}}\n.ow .out{{fill:url(#ow-hatch)}}\n\
         .ow .pad{{fill:url(#ow-dots)}}\n.ow .hl{{stroke:#a5adb6}}\n.ow .hb{{fill:#f0f2f4}}\n.ow .dot{{fill:#8b949e}}\n\
         .ow .grid{{fill:none;stroke:#ffffff;stroke-width:.5;opacity:.45}}\n\
         .ow .edge{{fill:none;stroke:#ffffff;stroke-width:1}}\n\
         .ow .gap{{fill:none;stroke:#ffffff;stroke-width:3;stroke-linecap:square}}\n\
         .ow .scope{{fill:none;stroke:#14181d;stroke-width:2;stroke-linecap:square}}\n\
         .ow .key{{fill:#ffffff;stroke:#14181d;stroke-width:2}}\n"
    );
    if levels {
        css.push_str(".ow .deep{fill:url(#ow-deep)}\n.ow .dl{stroke:#8b949e;stroke-width:1.2}\n");
    }
    for (i, fill) in FILLS.iter().enumerate() {
        css.push_str(&format!(".ow .c{i}{{fill:{fill}}}\n"));
    }
    // Block fills are the same in dark mode; pruned cells stay close to the
    // background in both.
    css.push_str(
        "@media (prefers-color-scheme:dark){\n.ow text{fill:#e6edf3}\n.ow .d,.ow .r{fill:#9198a1}\n\
         .ow .n{fill:#0d1117}\n\
         .ow .bg{fill:#0d1117}\n.ow .cut{fill:#2b313a}\n.ow .hl{stroke:#69727d}\n.ow .hb{fill:#1b2129}\n\
         .ow .grid,.ow .edge,.ow .gap{stroke:#0d1117}\n.ow .scope{stroke:#f0f6fc}\n\
         .ow .key{fill:#0d1117;stroke:#f0f6fc}\n}\n",
    );
    css
}

/// Hatching for weights outside the domain, dots for padding, and dark hatching for weights
/// that an inner level prunes.
fn patterns(svg: &mut Svg, levels: bool) {
    let size = |id: &'static &'static str| -> [(&'static str, &'static dyn Display); 4] {
        [("id", id), ("width", &6), ("height", &6), ("patternUnits", &"userSpaceOnUse")]
    };
    svg.inside("pattern", &size(&"ow-hatch"), |svg| {
        svg.empty("rect", &[("class", &"hb"), ("width", &6), ("height", &6)]);
        svg.empty("path", &[("class", &"hl"), ("d", &"M-1 7L7-1M-1 1L1-1M5 7L7 5")]);
    });
    svg.inside("pattern", &size(&"ow-dots"), |svg| {
        svg.empty("rect", &[("class", &"hb"), ("width", &6), ("height", &6)]);
        svg.empty("circle", &[("class", &"dot"), ("cx", &3), ("cy", &3), ("r", &1.1)]);
    });
    if levels {
        svg.inside("pattern", &size(&"ow-deep"), |svg| {
            svg.empty("rect", &[("class", &"cut"), ("width", &6), ("height", &6)]);
            svg.empty("path", &[("class", &"dl"), ("d", &"M-1 7L7-1M-1 1L1-1M5 7L7 5")]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;
    use crate::spec::PRESETS;

    /// Whether every element is closed by its own name and no bare `&` or `<` is
    /// left: what a browser needs of what [`Svg`] can write.
    fn well_formed(text: &str) -> Result<(), String> {
        let mut open = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            let (before, tag) = rest.split_at(start);
            for (i, _) in before.match_indices('&') {
                let entity = &before[i..];
                if !["&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "&#10;"]
                    .iter()
                    .any(|e| entity.starts_with(e))
                {
                    return Err(format!("a bare & in {before}"));
                }
            }
            let end = tag.find('>').ok_or("a tag without an end")?;
            let inside = &tag[1..end];
            rest = &tag[end + 1..];
            if let Some(name) = inside.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return Err(format!("{name} closes another"));
                }
            } else if !inside.ends_with('/') {
                open.push(inside.split(' ').next().unwrap_or(inside));
            }
            if inside.matches('"').count() % 2 != 0 || inside.contains('<') {
                return Err(format!("attributes of {inside}"));
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?} are open")) }
    }

    #[test]
    fn every_drawing_is_well_formed() {
        for preset in PRESETS {
            let spec = preset.example.parse::<Pattern>().unwrap().bind(preset.shape).unwrap();
            assert_eq!(well_formed(&svg(&spec, 3)), Ok(()), "{}", preset.name);
        }
        for example in crate::viz::GALLERY {
            let spec = example.text.parse::<Pattern>().unwrap().bind_all(example.tensors).unwrap();
            assert_eq!(well_formed(&svg(&spec, 3)), Ok(()), "{}", example.name);
        }
        let named = "2:4".parse::<Pattern>().unwrap().bind_all(&[("<&\"\u{7}", &[4, 8])]).unwrap();
        assert_eq!(well_formed(&svg(&named, 3)), Ok(()));
        assert_ne!(well_formed("<a><b></a></b>"), Ok(()));
        assert_ne!(well_formed("<a>&</a>"), Ok(()));
    }

    #[test]
    fn shapes_of_any_size_and_rank_are_drawn() {
        for (text, dims) in [
            ("keep 1", &[1][..]),
            ("2:4", &[4096]),
            ("2:4", &[3, 4]),
            ("2:4", &[9728, 9728]),
            ("unstructured(10%)", &[100_000, 100_000]),
            ("keep 50%", &[2, 3, 4, 5, 6, 7]),
            ("in (1,1)+(1,1) keep 0", &[3, 3]),
        ] {
            let spec = text.parse::<Pattern>().unwrap().bind(dims).unwrap();
            let drawn = svg(&spec, 0);
            assert_eq!(well_formed(&drawn), Ok(()), "{text}");
            assert!(drawn.len() < 400_000, "{text}: {} bytes", drawn.len());
        }
    }

    #[test]
    fn a_drawing_depends_on_its_seed_alone() {
        let spec = "2:4".parse::<Pattern>().unwrap().bind(&[8, 16]).unwrap();
        assert_eq!(svg(&spec, 5), svg(&spec, 5));
        assert_ne!(svg(&spec, 5), svg(&spec, 6));
    }
}
