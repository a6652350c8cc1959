//! The exporter's HTTP, over the client and the TLS that webhooks have.

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use posthaste::transports::tls;
use tokio::runtime::Handle;

/// Sends from the exporter's own thread, on the runtime of this process.
#[derive(Debug)]
pub(super) struct Client {
    client: reqwest::Client,
    runtime: Handle,
}

impl Client {
    pub(super) fn new() -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::client_config(None)?)
            .no_proxy()
            .build()
            .map_err(|error| error.to_string())?;
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        Ok(Self { client, runtime })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        let client = self.client.clone();
        let answer = self.runtime.spawn(async move {
            let mut answer = client.execute(request).await?.error_for_status()?;
            let mut response = Response::builder().status(answer.status());
            if let Some(headers) = response.headers_mut() {
                *headers = std::mem::take(answer.headers_mut());
            }
            Ok::<_, HttpError>(response.body(answer.bytes().await?)?)
        });
        answer.await?
    }
}
