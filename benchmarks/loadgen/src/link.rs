//! One connection, with or without TLS: bytes out, bytes in, without a separate thread.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Poll, Token};
use rustls::ClientConnection;

use crate::tls;

const CHUNK: usize = 256 * 1024;

pub struct Link {
    stream: TcpStream,
    tls: Option<ClientConnection>,
    pub outbox: Vec<u8>,
    sent: usize,
    inbox: Vec<u8>,
    filled: usize,
    taken: usize,
}

/// Connects and registers `count` links, their tokens are their indices.
pub fn connect(poll: &Poll, address: SocketAddr, count: usize, with_tls: bool) -> io::Result<Vec<Link>> {
    let config = tls::configuration();
    (0..count)
        .map(|index| {
            let mut stream = BlockingStream::connect_timeout(&address, Duration::from_secs(5))?;
            stream.set_nodelay(true)?;
            let tls = if with_tls {
                Some(tls::handshake(&config, &mut stream, address)?)
            } else {
                None
            };
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry()
                .register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
            Ok(Link {
                stream,
                tls,
                outbox: Vec::new(),
                sent: 0,
                inbox: vec![0; CHUNK],
                filled: 0,
                taken: 0,
            })
        })
        .collect()
}

impl Link {
    /// Writes what the socket takes now; the rest goes when it becomes writable again.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(&self.outbox)?;
            self.outbox.clear();
            return tls::send(tls, &mut self.stream);
        }
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads once; true if there may be more. A read that does not fill its buffer has emptied the socket (epoll(7)), which
    /// saves the second read that would only say so.
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.taken > 0 {
            self.inbox.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        if self.filled == self.inbox.len() {
            self.inbox.resize(self.inbox.len() * 2, 0); // one frame larger than the buffer; frames have a limit
        }
        if let Some(tls) = &mut self.tls {
            let filled = tls::receive(tls, &mut self.stream, &mut self.inbox, self.filled)?;
            self.filled = filled.unwrap_or(self.filled);
            return Ok(filled.is_some());
        }
        match self.stream.read(&mut self.inbox[self.filled..]) {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            )),
            Ok(bytes) => {
                self.filled += bytes;
                Ok(self.filled == self.inbox.len())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// What was read and not yet taken.
    pub fn unread(&self) -> &[u8] {
        &self.inbox[self.taken..self.filled]
    }

    pub fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        debug_assert!(self.taken <= self.filled);
    }
}
