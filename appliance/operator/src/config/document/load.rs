//! Merges the sources of a boot into a [`Document`].

use super::super::closing;
use super::super::command_line;
use super::super::origin::{Kind, Origin, Problem, Source};
use super::super::origins::Layer;
use super::super::renamed;
use super::super::tree::Node;
use super::{Document, Sources, console_problem, put};

/// The merge of the sources that precede the command line.
#[derive(Default)]
struct Loading {
    document: Document,
    problems: Vec<Problem>,
    /// Documents merged after the last unusable source.
    later: Vec<Node>,
    /// The last source that could not be used, or not all of it: what it may have restricted is closed.
    unusable: Option<Origin>,
}

impl Document {
    /// Merges the sources over the built-in default, and reports each mistake as a problem:
    ///
    /// * Unknown keys of a document are ignored, and what they may have restricted is closed.
    /// * A document with another mistake is ignored as a whole. The copy saved before it takes its place. Without a
    ///   copy, everything that the document may have restricted is closed.
    /// * Wrong settings of the command line and of SMBIOS are ignored one by one.
    pub fn load(sources: &Sources<'_>) -> (Document, Vec<Problem>) {
        let mut loading = Loading::default();
        loading.copies(Source::Image, [sources.image, None]);
        loading.copies(Source::FwCfg, [sources.fw_cfg, None]);
        if let Some(strings) = sources.smbios {
            if let Some(why) = strings.trouble {
                loading.lost(Source::Smbios, why);
            }
            loading.copies(Source::SmbiosDocument, [strings.document.as_deref(), None]);
            loading.settings(Source::Smbios, strings.settings.clone());
        }
        if let Some(name) = sources.seed_hostname {
            loading.settings(Source::SeedMetadata, vec![("system.hostname".into(), name.into())]);
        }
        loading.copies(Source::Seed, [sources.seed, None]);
        if let Some(why) = sources.seed_unusable {
            loading.lost(Source::Seed, why);
        }
        if sources.disk.is_none() && sources.disk_before.is_none() {
            let damaged = "damaged, without a usable older copy; `save` writes a new document";
            let why = sources.disk_unreachable.or(sources.disk_damaged.then_some(damaged));
            if let Some(why) = why {
                loading.lost(Source::Disk, why);
            }
        }
        loading.copies(Source::Disk, [sources.disk, sources.disk_before]);
        let Loading { mut document, mut problems, later, unusable } = loading;
        if let Some(origin) = unusable {
            document.close(&later, origin);
        }
        problems.extend(document.apply_command_line(sources.command_line));
        if sources.command_line_cut {
            let origin = Origin { source: Source::CommandLine, position: 0 };
            let reason = "too long, or not plain text: the lost part may have restricted access";
            problems.push(Problem { origin, ..console_problem("", reason.into()) });
            document.close(&[], origin);
        }
        if document.closed {
            let mistakes = problems.iter().filter(|problem| !problem.is_warning());
            document.reasons = mistakes.map(ToString::to_string).collect();
        }
        (document, problems)
    }

    fn apply_command_line(&mut self, line: &str) -> Vec<Problem> {
        let applied = self.apply_settings(Source::CommandLine, command_line::settings(line));
        if applied.restricts {
            self.close(&[], Origin { source: Source::CommandLine, position: 0 });
        }
        applied.problems
    }

    /// Applies all settings together. While some are wrong, drops those and tries again.
    fn apply_settings(&mut self, source: Source, settings: Vec<(String, String)>) -> Applied {
        let mut settings: Vec<_> = (1u32..).zip(settings).collect();
        let mut found = Vec::new();
        for (position, (path, _)) in &mut settings {
            let Some(new) = renamed::path(path) else { continue };
            let origin = Origin { source, position: *position };
            let renamed = console_problem(path, format!("renamed to {new}; use the new name"));
            found.push(Problem { kind: Kind::Renamed, origin, ..renamed });
            *path = new;
        }
        let mut restricts = false;
        while !settings.is_empty() {
            let mut root = self.root.clone();
            let put = |(position, (path, value)): &(u32, (String, String))| {
                let origin = Origin { source, position: *position };
                put(&mut root, path, value, origin).err()
            };
            let mut problems: Vec<Problem> = settings.iter().filter_map(put).collect();
            if problems.is_empty() {
                problems = match self.adopt(root, &[], None) {
                    Ok(()) => break,
                    Err(problems) => problems,
                };
            }
            let blamed = |position: u32| {
                let origin = Origin { source, position };
                problems.iter().any(|p| p.origin == origin)
            };
            let everything = settings.iter().all(|(position, _)| !blamed(*position));
            settings.retain(|(position, (path, _))| {
                let left_out = everything || blamed(*position);
                restricts |= left_out && closing::restricts(path);
                !left_out
            });
            found.append(&mut problems);
        }
        let used = settings.into_iter().map(|(_, setting)| setting).collect();
        Applied { used, problems: found, restricts }
    }
}

/// The outcome of settings.
struct Applied {
    /// Those that are in force.
    used: Vec<(String, String)>,
    problems: Vec<Problem>,
    /// Whether one that was dropped may have been a restriction.
    restricts: bool,
}

impl Loading {
    /// Notes that a source, or a part of it, cannot be used.
    fn lost(&mut self, source: Source, why: &str) {
        let origin = Origin { source, position: 0 };
        self.problems.push(Problem { origin, ..console_problem("", why.into()) });
        self.close_at(origin);
    }

    fn close_at(&mut self, origin: Origin) {
        (self.unusable, self.later) = (Some(origin), Vec::new());
    }

    /// Merges the first usable one of the copies of a document, which are in the order of their age.
    fn copies(&mut self, source: Source, copies: [Option<&[u8]>; 2]) {
        let origin = Origin { source, position: 0 };
        let copies = copies.into_iter().flatten();
        if copies.clone().next().is_none() {
            return;
        }
        for (age, text) in copies.enumerate() {
            let (tree, unknown, closes) = match self.document.lay_over(text, source) {
                Ok(merged) => merged,
                Err(found) => {
                    self.problems.extend(found);
                    continue;
                }
            };
            self.problems.extend(unknown);
            self.document.layers.push(Layer::of(source, &tree));
            match closes {
                true => self.close_at(origin),
                false => self.later.push(tree),
            }
            if age > 0 {
                self.document.older_copy = true;
                let reason =
                    "the newest document cannot be used; the one saved before it is in force";
                self.problems.push(Problem { origin, ..console_problem("", reason.into()) });
            }
            return;
        }
        self.close_at(origin);
    }

    /// Merges settings. They do not open what an unusable source has closed.
    fn settings(&mut self, source: Source, settings: Vec<(String, String)>) {
        let applied = self.document.apply_settings(source, settings);
        if !applied.used.is_empty() {
            self.document.layers.push(Layer::of_settings(source, &applied.used));
        }
        self.problems.extend(applied.problems);
        if applied.restricts {
            self.close_at(Origin { source, position: 0 });
        }
    }
}
