//! TLS of a connection, in memory. Each certificate is accepted: brokers under test make their own.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

#[derive(Debug)]
struct AcceptEach(CryptoProvider);

impl ServerCertVerifier for AcceptEach {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

pub fn configuration() -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has suites of both versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptEach(ring::default_provider())))
        .with_no_client_auth();
    Arc::new(config)
}

/// The handshake, on a stream that blocks.
pub fn handshake(
    config: &Arc<ClientConfig>,
    stream: &mut TcpStream,
    address: SocketAddr,
) -> io::Result<ClientConnection> {
    let name = ServerName::IpAddress(address.ip().into());
    let mut tls = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
    tls.set_buffer_limit(None); // the load limits what is in flight
    while tls.is_handshaking() {
        tls.complete_io(stream)?;
    }
    Ok(tls)
}

/// Sends what the socket takes now.
pub fn send(tls: &mut ClientConnection, stream: &mut impl Write) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(stream) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads once, and decrypts behind the `filled` bytes of `inbox`. Returns where they end then; None: nothing is left.
pub fn receive(
    tls: &mut ClientConnection,
    stream: &mut impl Read,
    inbox: &mut Vec<u8>,
    filled: usize,
) -> io::Result<Option<usize>> {
    match tls.read_tls(stream) {
        Ok(0) => {
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the server closed the connection",
            ))
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Some(filled)),
        Err(error) => return Err(error),
    }
    let state = tls.process_new_packets().map_err(io::Error::other)?;
    let end = filled + state.plaintext_bytes_to_read();
    if end > inbox.len() {
        inbox.resize(end.next_power_of_two(), 0);
    }
    tls.reader().read_exact(&mut inbox[filled..end])?;
    Ok(Some(end))
}
