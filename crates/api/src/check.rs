//! Refusing a request with the name of the field that is wrong.

use std::collections::BTreeMap;
use std::fmt::Display;

/// A field of a request is missing, contradicts another or is out of bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl FieldError {
    /// `field` has `problem`.
    #[must_use]
    pub fn new(field: &'static str, problem: impl Display) -> Self {
        Self { field, problem: problem.to_string() }
    }
}

/// Refuses a number outside `low..=high`.
pub(crate) fn within<N: PartialOrd + Display>(
    field: &'static str,
    value: N,
    low: N,
    high: N,
) -> Result<N, FieldError> {
    if (low <= value) && (value <= high) {
        Ok(value)
    } else {
        Err(FieldError::new(field, format!("{value} is not within {low} to {high}")))
    }
}

/// Refuses text that cannot be an argument of a program: a zero byte would end it early.
pub(crate) fn no_zero_byte(field: &'static str, text: &str) -> Result<(), FieldError> {
    if text.contains('\0') {
        return Err(FieldError::new(field, "must not contain a zero byte"));
    }
    Ok(())
}

/// Refuses what names no user of a guest.
///
/// # Errors
/// Names the field.
pub fn check_user(user: Option<&str>) -> Result<(), FieldError> {
    if user.is_some_and(str::is_empty) {
        return Err(FieldError::new("user", "must name a user, as `USER` or `USER:GROUP`"));
    }
    user.iter().try_for_each(|text| no_zero_byte("user", text))
}

/// Refuses what cannot be run as a program.
pub(crate) fn check_program(
    args: &[String],
    env: &BTreeMap<String, String>,
    cwd: Option<&str>,
    user: Option<&str>,
) -> Result<(), FieldError> {
    if args.first().is_none_or(String::is_empty) {
        return Err(FieldError::new("args", "must begin with a program"));
    }
    args.iter().try_for_each(|text| no_zero_byte("args", text))?;
    for (name, value) in env {
        if name.is_empty() || name.contains('=') {
            return Err(FieldError::new("env", "a name is empty or contains `=`"));
        }
        no_zero_byte("env", name)?;
        no_zero_byte("env", value)?;
    }
    check_user(user)?;
    cwd.iter().try_for_each(|text| no_zero_byte("cwd", text))
}
