//! Filters of system calls for a process that has few to make: what is not allowed gets `EPERM`.
//!
//! Guarantees: threads can be made, other processes cannot.
//!
//! Does not do: say what a process needs, or apply the filters; `seccompiler` does.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Why there is no filter.
pub type Error = Box<dyn std::error::Error>;

/// System calls, each with the arguments that are allowed; whatever they are if none are named.
pub type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// These calls whatever their arguments, and what makes a thread.
///
/// # Errors
/// None on a machine that has the numbers.
pub fn rules(allowed: &[i64]) -> Result<Rules, Error> {
    let mut rules: Rules = allowed.iter().map(|&number| (number, vec![])).collect();
    rules.insert(libc::SYS_clone3, vec![]);
    let threads = u64::try_from(libc::CLONE_THREAD)?;
    rules.insert(libc::SYS_clone, vec![when(0, SeccompCmpOp::MaskedEq(threads), threads)?]);
    Ok(rules)
}

/// The filters for these rules. Of two filters the kernel takes the stricter answer.
///
/// # Errors
/// When the rules are too many, or the machine is not known.
pub fn programs(rules: Rules) -> Result<[BpfProgram; 2], Error> {
    let arch = std::env::consts::ARCH.try_into()?;
    // glibc then makes threads with `clone`, whose arguments a filter can see.
    let unknown = Rules::from([(libc::SYS_clone3, vec![])]);
    let missing = SeccompAction::Errno(u32::try_from(libc::ENOSYS)?);
    let unknown = SeccompFilter::new(unknown, SeccompAction::Allow, missing, arch)?;
    let denied = SeccompAction::Errno(u32::try_from(libc::EPERM)?);
    let allowed = SeccompFilter::new(rules, denied, SeccompAction::Allow, arch)?;
    Ok([unknown.try_into()?, allowed.try_into()?])
}

/// Allows a call when the lower half of this argument is so.
///
/// # Errors
/// When there is no such argument.
pub fn when(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, Error> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}
