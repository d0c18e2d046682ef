//! `openwork show SPEC --shape 16,32`.

mod json;

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork::Pattern;
use openwork::fragment::Fragment;
use openwork::viz::{self, Scene};
use openwork_llm::NamedShape;
use openwork_llm::output::OutputFile;
use std::io::IsTerminal;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  openwork show 2:4 --shape 8,16
  openwork show 'block(16,16)' --shape 4096,4096 --json
  openwork show 'view m (g j i) -> m g i j, j=2 i=8 block (1,1,1,2) scope (1,1,4,1) keep 2' \\
      --shape 8,32
  openwork show 'in (M/4,0)+(M*3/4,K) scope (1,4) keep 2' --shape 8,16 --svg pattern.svg
  openwork show rows16 --shape 16,32 --fragment m16n8k16
  openwork show 'blocks up: block (1,_) & down perm (1,0): block (_,1) scope (4,1) keep 2' \\
      --shape up=16,8 --shape down=8,16

docs/spec-language.md describes the spec language; `openwork presets` lists the presets.";

/// Explain a spec on given shapes: grids, scopes, density, storage, a drawing
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Show {
    /// The spec, for example `2:4` or `block (1,4) scope (1,_) keep 50%`
    spec: String,
    /// Shape of the tensor, such as `16,32`; for a coupling, one per tensor with its name,
    /// such as `q=16,32`
    #[arg(long, value_name = "[NAME=]DIMS", required = true)]
    shape: Vec<String>,
    /// With --json, list the weights of every block and the blocks of every scope
    #[arg(long)]
    elements: bool,
    /// Write the drawing of the spec, or of the fragment with --fragment, to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Replace the SVG file if it exists
    #[arg(long, requires = "svg")]
    force: bool,
    /// Map the spec onto a tensor core fragment, `m16n8k16`: lanes, balance, metadata
    #[arg(long, value_name = "NAME")]
    fragment: Option<String>,
    /// Random seed of the example mask
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Show {
    /// Prints the fact sheet and the drawing, or one JSON object.
    pub fn run(self, global: &Global) -> Result<(), Failure> {
        if self.elements && !global.json {
            return Err(Failure::Input("--elements needs --json".to_string()));
        }
        let pattern: Pattern = self.spec.parse().map_err(Failure::input)?;
        let shapes = NamedShape::parse_all(&self.shape, &pattern);
        let shapes = shapes.map_err(|why| Failure::Input(format!("--shape {why}")))?;
        let tensors: Vec<_> = shapes.iter().map(NamedShape::named).collect();
        let spec = pattern.bind_all(&tensors).map_err(Failure::input)?;
        let elements = if self.elements { Some(json::elements(&spec)?) } else { None };
        let fragment = match &self.fragment {
            Some(name) => Some(Fragment::new(&spec, name, self.seed).map_err(Failure::input)?),
            None => None,
        };
        if let Some(path) = &self.svg {
            let drawing = match &fragment {
                Some(fragment) => viz::fragment_svg(&spec, fragment),
                None => viz::svg(&spec, self.seed),
            };
            global.write(&OutputFile::new(path, &[], self.force)?, drawing.as_bytes())?;
        }
        if global.json {
            let mut object = openwork_llm::spec_json(&spec);
            if let (Some(object), Some(elements)) = (object.as_object_mut(), elements) {
                object.extend(elements);
            }
            if let Some(fragment) = &fragment {
                object["fragment"] = openwork_llm::fragment_json(fragment);
            }
            return print::line(object);
        }
        let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let drawing = viz::terminal(&Scene::new(&spec, self.seed), color);
        let fragment = fragment.map_or_else(String::new, |fragment| {
            format!("\n{}", viz::fragment_terminal(&fragment, color))
        });
        print::text(&format!("{}\n", viz::sheet(&spec)))?;
        print::drawing(&format!("{drawing}{fragment}"), color)
    }
}
