//! Device counters: the number of commands, work requests and doorbells that a device has executed.
//! A command prints them.
//!
//! The format is JSON:
//! `{"schema":1,"functions":[{"commands":{"create_mkey":n,...},"wqes":{"umr_bind":n,...},
//! "doorbells":n},...]}`. Other fields are ignored. A missing counter is an error, because it must
//! not count as zero.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The supported schema version.
const SCHEMA: u64 = 1;

/// Counters, summed over all functions of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    create_mkey: u64,
    destroy_mkey: u64,
    allow_other_vhca_access: u64,
    create_alias: u64,
    destroy_alias: u64,
    umr_bind: u64,
    umr_invalidate: u64,
    doorbells: u64,
}

/// Counters per iteration. The field names are those of the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandsPerIteration {
    /// CREATE_MKEY commands.
    pub create_mkey: f64,
    /// Destructions of mkeys.
    pub destroy_mkey: f64,
    /// ALLOW_OTHER_VHCA_ACCESS commands.
    pub allow_other_vhca_access: f64,
    /// Creations of alias objects.
    pub create_alias: f64,
    /// Destructions of alias objects.
    pub destroy_alias: f64,
    /// UMR work requests that bind a key.
    pub umr_bind: f64,
    /// UMR work requests that invalidate one.
    pub umr_invalidate: f64,
    /// Doorbells of all kinds.
    pub doorbells: f64,
}

impl CommandsPerIteration {
    /// Commands that create or destroy keys and aliases. A pool avoids them.
    #[must_use]
    pub fn key_commands(&self) -> f64 {
        self.create_mkey
            + self.destroy_mkey
            + self.allow_other_vhca_access
            + self.create_alias
            + self.destroy_alias
    }
}

/// Reason why the counters cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CountersError {
    /// Not JSON, or not in the format above.
    #[error("device counters: {0}")]
    Form(#[from] serde_json::Error),
    /// Another schema version.
    #[error("device counters of schema {0}, understood is {SCHEMA}")]
    Schema(u64),
    /// A counter is missing.
    #[error("device counters of {function} lack {counter}")]
    Missing {
        /// The function's name.
        function: String,
        /// The counter's name.
        counter: &'static str,
    },
    /// A counter decreased: someone has reset the device.
    #[error("device counter {counter} went from {before} to {after}")]
    Backwards {
        /// The counter's name.
        counter: &'static str,
        /// The earlier value.
        before: u64,
        /// The later value.
        after: u64,
    },
}

#[derive(Deserialize)]
struct Document {
    schema: u64,
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct Function {
    #[serde(default)]
    name: String,
    commands: BTreeMap<String, u64>,
    wqes: BTreeMap<String, u64>,
    doorbells: u64,
}

impl Counters {
    /// Parses the output of the counters command and sums over all functions.
    ///
    /// # Errors
    /// [`CountersError`].
    pub fn parse(json: &[u8]) -> Result<Self, CountersError> {
        let document: Document = serde_json::from_slice(json)?;
        if document.schema != SCHEMA {
            return Err(CountersError::Schema(document.schema));
        }
        let mut sum = Self::default();
        for function in &document.functions {
            let command = |counter| function.get(&function.commands, counter);
            let wqe = |counter| function.get(&function.wqes, counter);
            sum.create_mkey += command("create_mkey")?;
            sum.destroy_mkey += command("destroy_mkey")?;
            sum.allow_other_vhca_access += command("allow_other_vhca_access")?;
            sum.create_alias += command("create_alias")?;
            sum.destroy_alias += command("destroy_alias")?;
            sum.umr_bind += wqe("umr_bind")?;
            sum.umr_invalidate += wqe("umr_invalidate")?;
            sum.doorbells += function.doorbells;
        }
        Ok(sum)
    }

    /// The difference to the counters `before`.
    ///
    /// # Errors
    /// [`CountersError::Backwards`].
    pub fn since(&self, before: &Self) -> Result<Self, CountersError> {
        let less = |counter, after: u64, before: u64| {
            after.checked_sub(before).ok_or(CountersError::Backwards {
                counter,
                before,
                after,
            })
        };
        macro_rules! difference {
            ($($counter:ident),*) => {
                Ok(Self { $($counter: less(stringify!($counter), self.$counter, before.$counter)?),* })
            };
        }
        difference!(
            create_mkey,
            destroy_mkey,
            allow_other_vhca_access,
            create_alias,
            destroy_alias,
            umr_bind,
            umr_invalidate,
            doorbells
        )
    }

    /// Adds the counters of another batch.
    pub fn add(&mut self, other: &Self) {
        self.create_mkey += other.create_mkey;
        self.destroy_mkey += other.destroy_mkey;
        self.allow_other_vhca_access += other.allow_other_vhca_access;
        self.create_alias += other.create_alias;
        self.destroy_alias += other.destroy_alias;
        self.umr_bind += other.umr_bind;
        self.umr_invalidate += other.umr_invalidate;
        self.doorbells += other.doorbells;
    }

    /// The counters divided by `iterations`.
    #[must_use]
    pub fn per_iteration(&self, iterations: u64) -> CommandsPerIteration {
        #[expect(
            clippy::cast_precision_loss,
            reason = "exact below 2^53, and no run counts that far"
        )]
        let per = |count: u64| count as f64 / iterations as f64;
        CommandsPerIteration {
            create_mkey: per(self.create_mkey),
            destroy_mkey: per(self.destroy_mkey),
            allow_other_vhca_access: per(self.allow_other_vhca_access),
            create_alias: per(self.create_alias),
            destroy_alias: per(self.destroy_alias),
            umr_bind: per(self.umr_bind),
            umr_invalidate: per(self.umr_invalidate),
            doorbells: per(self.doorbells),
        }
    }
}

impl Function {
    fn get(
        &self,
        counters: &BTreeMap<String, u64>,
        counter: &'static str,
    ) -> Result<u64, CountersError> {
        counters
            .get(counter)
            .copied()
            .ok_or_else(|| CountersError::Missing {
                function: self.name.clone(),
                counter,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"{"schema":1,"profile":"bluefield3","functions":[
        {"name":"node0.host","vhca_id":1,
         "commands":{"create_mkey":3,"destroy_mkey":2,"allow_other_vhca_access":3,"create_alias":0,"destroy_alias":0,
                     "query_hca_cap":4},
         "wqes":{"umr_bind":9,"umr_invalidate":8,"rdma_read":1},"doorbells":40},
        {"name":"node0.dpu","vhca_id":2,
         "commands":{"create_mkey":1,"destroy_mkey":0,"allow_other_vhca_access":1,"create_alias":5,"destroy_alias":4},
         "wqes":{"umr_bind":0,"umr_invalidate":0},"doorbells":2}]}"#;

    fn counters() -> Counters {
        Counters::parse(TWO.as_bytes()).expect("well formed")
    }

    #[test]
    fn functions_are_summed_and_what_is_not_asked_for_is_ignored() {
        assert_eq!(
            counters(),
            Counters {
                create_mkey: 4,
                destroy_mkey: 2,
                allow_other_vhca_access: 4,
                create_alias: 5,
                destroy_alias: 4,
                umr_bind: 9,
                umr_invalidate: 8,
                doorbells: 42,
            }
        );
    }

    #[test]
    fn differences_are_divided_by_iterations() {
        let mut after = counters();
        after.umr_bind += 30;
        after.doorbells += 45;
        let mut sum = Counters::default();
        sum.add(&after.since(&counters()).expect("forwards"));
        let per = sum.per_iteration(30);
        assert_eq!((per.umr_bind, per.doorbells), (1.0, 1.5));
        assert_eq!(per.key_commands(), 0.0);
    }

    fn check(json: &str, expect: &str) {
        let error = Counters::parse(json.as_bytes()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
    }

    #[test]
    fn what_cannot_be_counted_is_an_error() {
        check("nonsense", "device counters: expected");
        check(
            r#"{"schema":2,"functions":[]}"#,
            "schema 2, understood is 1",
        );
        check(
            &TWO.replace("\"umr_invalidate\":0", "\"x\":0"),
            "node0.dpu lack umr_invalidate",
        );
        check(
            &TWO.replace("\"create_alias\":0,", ""),
            "node0.host lack create_alias",
        );
        check(&TWO.replace(",\"doorbells\":2", ""), "doorbells");
        let error = Counters::default().since(&counters()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device counter create_mkey went from 4 to 0"
        );
    }
}
