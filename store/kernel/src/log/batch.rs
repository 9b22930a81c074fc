//! A client's batch: messages of one topic and queue in one body.

use super::tail::AppendFault;

/// One message of a client's batch: flag, body, properties.
pub(super) type Inside<'a> = (i32, &'a [u8], &'a [u8]);

/// The messages of a batch: `size, magic, crc, flag, body size, body, properties size, properties` each.
pub(super) fn batch_messages(mut batch: &[u8]) -> Result<Vec<Inside<'_>>, AppendFault> {
    let whole = batch.len();
    let mut messages = Vec::new();
    while !batch.is_empty() {
        let at = whole - batch.len();
        let broken = || AppendFault::Illegal(format!("the batch's message at byte {at} is cut or has wrong lengths"));
        let int = |from: usize| {
            batch
                .get(from..from + 4)
                .map(|b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]))
        };
        let size = int(0).and_then(|size| usize::try_from(size).ok()).ok_or_else(broken)?;
        let body_bytes = int(16).and_then(|size| usize::try_from(size).ok()).ok_or_else(broken)?;
        let flag = int(12).ok_or_else(broken)?;
        let after = 20usize.checked_add(body_bytes).ok_or_else(broken)?;
        let field = batch.get(after..after + 2).ok_or_else(broken)?;
        let properties_bytes = usize::try_from(i16::from_be_bytes([field[0], field[1]])).map_err(|_| broken())?;
        let end = after + 2 + properties_bytes;
        if size != end || end > batch.len() {
            return Err(broken());
        }
        messages.push((flag, &batch[20..after], &batch[after + 2..end]));
        batch = &batch[end..];
    }
    if messages.is_empty() {
        return Err(AppendFault::Illegal("the batch has no message".to_owned()));
    }
    Ok(messages)
}
