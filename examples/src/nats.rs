//! Connecting to NATS by a URL that may hold a user and a password, which the client leaves aside.

use async_nats::{Client, ConnectOptions, ServerAddr};

/// Connects to `nats://user:password@host:port`.
pub async fn connect(url: &str) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let server: ServerAddr = url.parse()?;
    let options = match (server.username(), server.password()) {
        (Some(user), Some(password)) => {
            ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
        }
        _ => ConnectOptions::new(),
    };
    Ok(options.connect(server).await?)
}
