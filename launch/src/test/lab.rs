//! Builds the images, guests, models and programs of suites on first use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::plan::Job;
use super::suites::{FORMATS, METAL, Needs};
use crate::build::{self, Families, Image, Profile};
use crate::qemu::Program;
use crate::setup::{self, Purpose};
use crate::{command, full, guest, models, workspace};

/// The images, guests, models and programs that were built so far.
pub(super) struct Lab {
    profile: Profile,
    image: Option<Image>,
    has_faults: bool,
    has_uhyve: bool,
    families: BTreeMap<&'static str, PathBuf>,
    formats: Vec<(&'static str, PathBuf)>,
    models: Option<PathBuf>,
}

impl Lab {
    pub(super) fn new(profile: Profile) -> Lab {
        Lab {
            profile,
            image: None,
            has_faults: false,
            has_uhyve: false,
            families: BTreeMap::new(),
            formats: Vec::new(),
            models: None,
        }
    }

    /// Whether a job needs an image that is not built yet.
    pub(super) fn lacks_an_image_for(&self, job: &Job) -> bool {
        let needs = job.needs;
        match job.suite.family {
            Some(family) if needs.image() => !self.families.contains_key(family),
            _ => {
                (needs.image() && self.image.is_none())
                    || (job.provokes() && !self.has_faults)
                    || (needs == Needs::Uhyve && !self.has_uhyve)
            }
        }
    }

    /// Installs, unpacks and builds everything that a job needs except its test programs.
    pub(super) fn prepare(&mut self, job: &Job) -> Result<()> {
        let needs = job.needs;
        setup::install(job.suite.uses)?;
        if needs.guests() {
            guest::prepare()?;
        }
        if needs.unpacked_qemu() {
            Program::with_vfio_user()?;
        }
        if needs.models() && self.models.is_none() {
            self.models = Some(models::build()?);
        }
        if !needs.image() {
            return Ok(());
        }
        match job.suite.family {
            Some(family) if !self.families.contains_key(family) => {
                let families = Families::and(family);
                let name = Some(format!("isthmus-{family}"));
                let options =
                    build::Options { families, name, profile: self.profile, ..Default::default() };
                self.families.insert(family, build::build(&options)?.elf);
                Ok(())
            }
            Some(_) => Ok(()),
            None => self.build_image(job),
        }
    }

    fn build_image(&mut self, job: &Job) -> Result<()> {
        if !self.lacks_an_image_for(job) {
            return Ok(());
        }
        self.has_faults |= job.provokes();
        self.has_uhyve |= job.needs == Needs::Uhyve;
        self.image = Some(build::build(&build::Options {
            uhyve: self.has_uhyve,
            faults: self.has_faults,
            profile: self.profile,
            ..Default::default()
        })?);
        Ok(())
    }

    /// Packs the image into disks and CDs if a job boots them, with the full launcher, which is compiled with the
    /// tests.
    pub(super) fn pack(&mut self, job: &Job) -> Result<()> {
        let Some(image) = self.image.as_ref().filter(|_| job.needs == Needs::Formats) else {
            return Ok(());
        };
        if self.formats.is_empty() {
            let program = full::in_tests("launch-full")?;
            for (variable, format) in FORMATS {
                let path = workspace::target().join("test").join(format!("isthmus.{format}"));
                let mut pack = Command::new(&program);
                pack.args(["image", format, "--elf"]).arg(&image.elf).arg("--output").arg(&path);
                command::run(&mut pack)?;
                self.formats.push((variable, path));
            }
        }
        Ok(())
    }

    /// The environment variables by which a job's cases find these files.
    pub(super) fn environment(&self, job: &Job) -> Vec<(&'static str, PathBuf)> {
        let mut environment = self.formats.clone();
        environment.extend(self.models.clone().map(|path| ("ISTHMUS_MODELS", path)));
        if let Some(image) = &self.image {
            environment.push(("ISTHMUS_IMAGE", image.elf.clone()));
            environment.extend(image.faults.clone().map(|path| ("ISTHMUS_FAULTS", path)));
            environment.extend(image.uhyve.clone().map(|path| ("ISTHMUS_UHYVE", path)));
        }
        if let Some(own) = job.suite.family.and_then(|family| self.families.get(family)) {
            environment.retain(|(name, _)| *name != "ISTHMUS_IMAGE");
            environment.push(("ISTHMUS_IMAGE", own.clone()));
        }
        if job.suite.of.is_some() {
            let unset = METAL.iter().filter(|(name, _)| std::env::var_os(name).is_none());
            environment.extend(unset.map(|(name, value)| (*name, PathBuf::from(value))));
        }
        environment
    }
}

/// Installs the programs for all jobs at once.
pub(super) fn install(jobs: &[Job]) -> Result<()> {
    let uses: Vec<Purpose> = jobs.iter().flat_map(|job| job.suite.uses).copied().collect();
    setup::install(&uses)
}
