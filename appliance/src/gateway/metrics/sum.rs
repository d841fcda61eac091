//! One page out of those of several loops, in the text format of Prometheus: families with the same
//! name become one, samples with the same name and labels are added up, as counts, sizes and
//! histogram buckets of parts of a whole may be.

use std::collections::HashMap;

/// A family: the lines that describe it, and its samples in order.
#[derive(Default)]
struct Family {
    head: String,
    samples: Vec<(String, f64)>,
    /// Where each sample is.
    places: HashMap<String, usize>,
}

/// The sum of pages that [`net::metrics::Writer`] wrote.
pub(super) fn sum(mut pages: Vec<String>) -> String {
    if pages.len() <= 1 {
        return pages.pop().unwrap_or_default();
    }
    let mut families: Vec<Family> = Vec::new();
    let mut names = HashMap::new();
    for page in &pages {
        let mut at = None;
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let name = rest.split(' ').next().unwrap_or_default();
                at = Some(*names.entry(name.to_string()).or_insert_with(|| {
                    families.push(Family::default());
                    families.len() - 1
                }));
            }
            let Some(family) = at.and_then(|at| families.get_mut(at)) else { continue };
            family.add(line);
        }
    }
    families.iter().map(Family::text).collect()
}

impl Family {
    fn add(&mut self, line: &str) {
        if line.starts_with('#') {
            if !self.head.lines().any(|there| there == line) {
                self.head += line;
                self.head.push('\n');
            }
            return;
        }
        let Some((series, value)) = line.rsplit_once(' ') else { return };
        let value = value.parse().unwrap_or(0.0);
        match self.places.get(series) {
            Some(&place) => self.samples[place].1 += value,
            None => {
                self.places.insert(series.to_string(), self.samples.len());
                self.samples.push((series.to_string(), value));
            }
        }
    }

    fn text(&self) -> String {
        let samples = self.samples.iter().map(|(series, value)| format!("{series} {value}\n"));
        core::iter::once(self.head.clone()).chain(samples).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::metrics::Writer;

    fn page(port: &str, count: u64) -> String {
        let mut page = String::new();
        let mut writer = Writer::new(&mut page);
        writer.gauge("pairs", "Pairs.").unwrap().sample(&[], count).unwrap();
        let mut family = writer.counter("frames_total", "Frames.").unwrap();
        family.sample(&[("port", &port)], count).unwrap();
        family.sample(&[("port", &"all of them")], 1).unwrap();
        page
    }

    #[test]
    fn families_stand_together_and_the_same_sample_is_added_up() {
        let expected = "# HELP pairs Pairs.\n# TYPE pairs gauge\npairs 12\n\
            # HELP frames_total Frames.\n# TYPE frames_total counter\n\
            frames_total{port=\"a\"} 5\nframes_total{port=\"all of them\"} 2\n\
            frames_total{port=\"b\"} 7\n";
        assert_eq!(sum(vec![page("a", 5), page("b", 7)]), expected);
        assert_eq!(sum(vec![page("a", 5)]), page("a", 5), "one loop costs nothing");
        assert_eq!(sum(Vec::new()), "");
    }
}
