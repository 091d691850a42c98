//! Which CPU gets the interrupts of the guest agent's port.

use std::fs;
use std::io;
use std::path::Path;

/// Sends the interrupts of a virtio device, such as `virtio0`, to the first CPU. The kernel moves
/// some kinds when the next one comes.
///
/// # Errors
/// What the kernel says; `NotFound` when the device has none.
pub(super) fn send_to_first_cpu(device: &str) -> io::Result<()> {
    let text = fs::read_to_string("/proc/interrupts")?;
    let numbers = numbers_of(&text, device);
    if numbers.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    numbers.iter().try_for_each(|number| {
        fs::write(Path::new("/proc/irq").join(number).join("smp_affinity_list"), "0")
    })
}

/// The numbers of a device's interrupts in the text of `/proc/interrupts`. The last word of a line
/// names the device, and of one with several interrupts also which.
fn numbers_of<'text>(text: &'text str, device: &str) -> Vec<&'text str> {
    let is_of = |name: &str| {
        let rest = name.strip_prefix(device);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let number = |line: &'text str| {
        let (number, rest) = line.split_once(':')?;
        is_of(rest.split_ascii_whitespace().last()?).then_some(number.trim())
    };
    text.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_found_by_the_device_that_they_are_of() {
        let text = "           CPU0       CPU1\n\
                    \x20 4:        511          0   IO-APIC   4-edge      ttyS0\n\
                    \x2010:          0         51   IO-APIC  10-edge      virtio1\n\
                    \x2011:          0          9   IO-APIC  11-edge      virtio10\n\
                    \x2024:          0          9   PCI-MSI 65536-edge      virtio2-config\n\
                    \x2025:          0          9   PCI-MSI 65537-edge      virtio2-input.0\n\
                    NMI:          0          0   Non-maskable interrupts\n";
        assert_eq!(numbers_of(text, "virtio1"), ["10"]);
        assert_eq!(numbers_of(text, "virtio2"), ["24", "25"]);
        assert!(numbers_of(text, "virtio3").is_empty());
    }
}
