//! A client of the control plane's API, with a connection that stays open.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use strongroom_serving::{Answered, ClientConnection, ExchangeLimits, shake_hands_with};
use tokio::net::TcpStream;

use crate::error::{EstateError, system};
use crate::site::Site;

/// Limits of answers: a page of a thousand VMs is below 1 MiB.
const LIMITS: ExchangeLimits = ExchangeLimits { head_bytes: 16 << 10, body_bytes: 64 << 20 };
/// Timeout of a TLS handshake.
const SHAKES_WITHIN: Duration = Duration::from_secs(30);
/// Timeout of a task.
const TASK_WITHIN: Duration = Duration::from_secs(300);

/// Where an API is, and how to ask it.
#[derive(Clone)]
pub struct Api {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    authorization: Arc<str>,
}

impl Api {
    /// The API of a site, with the first token.
    ///
    /// # Errors
    /// If certificate or token cannot be read.
    pub fn of(home: &Path) -> Result<Self, EstateError> {
        let control = home.join("control");
        let certificate = CertificateDer::from_pem_file(control.join("api.crt"))
            .map_err(|error| EstateError::Identity(format!("the API's certificate: {error}")))?;
        let mut roots = RootCertStore::empty();
        let unusable = |error: rustls::Error| EstateError::Identity(error.to_string());
        roots.add(certificate).map_err(unusable)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.map_err(unusable)?.with_root_certificates(roots).with_no_client_auth();
        let token = fs::read_to_string(control.join("token")).map_err(system("read the first token"))?;
        let authorization = format!("Bearer {}", token.trim()).into();
        Ok(Self { address: Site::api(), tls: Arc::new(tls), authorization })
    }

    /// Connects.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn connect(&self) -> Result<ApiConnection, EstateError> {
        Ok(ApiConnection { api: self.clone(), connection: self.opened().await? })
    }

    async fn opened(&self) -> Result<ClientConnection, EstateError> {
        let stream = TcpStream::connect(self.address).await.map_err(system("connect to the API"))?;
        stream.set_nodelay(true).map_err(system("connect to the API"))?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let stream = shake_hands_with(Arc::clone(&self.tls), name, stream, SHAKES_WITHIN).await?;
        Ok(ClientConnection::over(stream, LIMITS).await?)
    }
}

/// A connection to the API.
pub struct ApiConnection {
    api: Api,
    connection: ClientConnection,
}

impl ApiConnection {
    /// Asks for something.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn get(&mut self, path: &str) -> Result<Value, EstateError> {
        self.ask(Method::GET, path, None).await
    }

    /// Sends a request, without repeating it.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, EstateError> {
        let answered = self.answered(&method, path, body).await?;
        serde_json::from_slice(&answered.body)
            .map_err(|error| EstateError::Unexpected(format!("{method} {path}: {error}")))
    }

    /// The text that a path answers with.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn text(&mut self, path: &str) -> Result<String, EstateError> {
        let answered = self.answered(&Method::GET, path, None).await?;
        Ok(String::from_utf8_lossy(&answered.body).into_owned())
    }

    /// The answer to a request that is not refused.
    async fn answered(
        &mut self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answered, EstateError> {
        let answered = self.send(method, path, body).await?;
        match answered.status.is_success() {
            true => Ok(answered),
            false => Err(EstateError::Refused {
                method: method.to_string(),
                path: path.to_owned(),
                status: answered.status.as_u16(),
                body: String::from_utf8_lossy(&answered.body).into_owned(),
            }),
        }
    }

    async fn send(
        &mut self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answered, EstateError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(HOST, self.api.address.to_string())
            .header(AUTHORIZATION, &*self.api.authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| EstateError::Unexpected(error.to_string()))?;
        match self.connection.exchange(request.clone()).await {
            Err(error) if error.is_unsent() => {
                self.connection = self.api.opened().await?;
                Ok(self.connection.exchange(request).await?)
            }
            answered => Ok(answered?),
        }
    }

    /// Sends a request that becomes a task, and waits for its end.
    ///
    /// # Errors
    /// [`EstateError`], also if the task fails.
    pub async fn carry_out(&mut self, method: Method, path: &str, body: &Value) -> Result<(), EstateError> {
        let mut task = self.ask(method, path, Some(body)).await?;
        let until = Instant::now() + TASK_WITHIN;
        loop {
            match task["state"].as_str() {
                Some("done") => return Ok(()),
                Some("running") if Instant::now() < until => {}
                Some("running") => return Err(EstateError::Late(format!("the end of {task}"))),
                _ => return Err(EstateError::Unexpected(format!("{path}: {task}"))),
            }
            let id = task["id"].as_str().unwrap_or_default().to_owned();
            task = self.get(&format!("/v1/tasks/{id}?wait_s=30")).await?;
        }
    }

    /// Whether the control plane hears from so many hosts beside its own machine, and knows the
    /// state of each of so many VMs.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn knows_all(&mut self, vms: usize, hosts: usize) -> Result<bool, EstateError> {
        let unknown = self.get("/v1/vms?power=unknown&limit=1").await?;
        let all = self.get("/v1/vms?limit=1").await?;
        let of_site = self.get("/v1/hosts?limit=1000").await?;
        let items = of_site["items"].as_array();
        let connected = items.into_iter().flatten().filter(|host| host["state"] == "connected").count();
        Ok(unknown["total"] == 0 && all["total"] == vms && connected > hosts)
    }
}
