//! The rig's findings as text.

use crate::incident::{Incident, Leaked, Run};
use crate::survey::Survey;
use std::fmt;

/// Letters of an answer that are shown.
const SHOWN: usize = 48;

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, tenants, requests, unprotected, protected, blast_radius_exact } = self;
        writeln!(
            f,
            "{requests} responses of {tenants} tenants, seed {seed}. Prompts are computed by one group and handed to"
        )?;
        writeln!(
            f,
            "another, into whose memory the first one may write; pages of handoffs that end are given out again"
        )?;
        writeln!(
            f,
            "without waiting for bytes that are on their way. Each letter of an answer names the tenant whose"
        )?;
        writeln!(f, "content decided it.\n")?;
        writeln!(f, "nobody looks")?;
        told(f, unprotected)?;
        for leaked in &unprotected.shown {
            writeln!(f, "{leaked}")?;
        }
        writeln!(f, "\nthe same with the checks of those who read")?;
        told(f, protected)?;
        for (what, count) in &protected.verdicts {
            writeln!(f, "    caught by {what:24} {count:6}")?;
        }
        let exactly = if *blast_radius_exact { "exactly" } else { "NOT" };
        write!(
            f,
            "\nresponses that could have been touched, computed from the log alone: {exactly} those that could be"
        )
    }
}

fn told(f: &mut fmt::Formatter<'_>, run: &Run) -> fmt::Result {
    let Run { responses, left, leaked, caught, false_alarms, right, touched_by_log, touched_in_truth, .. } = run;
    for (what, count) in [
        ("responses", responses),
        ("whose clients left", left),
        ("carried another tenant's content", leaked),
        ("were caught before that", caught),
        ("were caught for nothing", false_alarms),
        ("were right", right),
        ("could have been touched, by the log", &touched_by_log.len()),
        ("could have been touched, in truth", &touched_in_truth.len()),
    ] {
        writeln!(f, "    {what:34} {count:6}")?;
    }
    Ok(())
}

impl fmt::Display for Leaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, tenant, answer, sources } = self;
        let shown: String = answer.chars().take(SHOWN).collect();
        let right: String = shown.chars().map(|_| *tenant).collect();
        writeln!(f, "\n    response {request} of tenant {tenant} got   {shown}")?;
        write!(
            f,
            "    instead of{:>width$}   {right}",
            "",
            width = format!("response {request} of tenant {tenant} got").len() - 10
        )?;
        for source in sources {
            let crate::incident::Source { request, tenant, page } = source;
            write!(f, "\n    from page {page}, where the content of request {request} of tenant {tenant} lay")?;
        }
        Ok(())
    }
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["planted", "before", "after", "missed", "false", "unchecked"];
        write!(f, "{:8}", "class")?;
        columns.iter().try_for_each(|column| write!(f, "{column:>10}"))?;
        writeln!(f, "  not built yet")?;
        for row in &self.classes {
            let counts = [row.planted, row.before, row.after, row.missed, row.false_alarms, row.leaks_unchecked];
            write!(f, "{:8}", row.class)?;
            counts.iter().try_for_each(|count| write!(f, "{count:10}"))?;
            writeln!(f, "  {}", row.pending.join(", "))?;
        }
        writeln!(f, "\nplanted    runs in which a planted fault had an effect")?;
        writeln!(f, "before     found out before a foreign byte left")?;
        writeln!(f, "after      found out when foreign bytes had left")?;
        writeln!(f, "missed     not found out")?;
        writeln!(f, "false      responses accused where nothing was planted")?;
        write!(f, "unchecked  of the same runs with nobody looking: foreign bytes left")
    }
}
