//! A TCP proxy that swallows answers: the connection stays open and says nothing more. Or that hangs up
//! on what a client sends.
//!
//! A request is what a client sends between two answers of the server. The proxy looks for a text in
//! it, so a database must be spoken to in plain text (no TLS), and a driver must send its statements
//! with every call (no cache of prepared statements) for their texts to be found.
//!
//! One task carries both directions of a connection: that suits a client and a server that take turns.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};

/// Longest request in which a text is found: of a longer one only the end is looked at.
const REQUEST: usize = 1 << 20;

/// How long the server is not told that the client of a silent connection has left. Longer than a
/// server that was told to end idle transactions keeps their locks.
const UNTOLD: Duration = Duration::from_secs(20);

/// Which answer is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The request contains this; an empty text is in every request.
    pub to: &'static str,
    /// How many answers on the same connection come before: with 0 it is the answer to that request,
    /// with 1 the answer to the one after it.
    pub after: u32,
}

/// What the server learns of a connection that was silenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// When the client leaves, the server is told.
    OneWay,
    /// Nothing: the server keeps what the client has locked, as when a network is cut. The proxy
    /// closes the connection 20 s after the client did.
    BothWays,
}

/// Forwards connections to one server. Dropped, it ends all of them.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    orders: Arc<Mutex<Orders>>,
    accepting: JoinHandle<()>,
}

/// What the connections are told to do.
#[derive(Debug, Default)]
struct Orders {
    /// Where new connections are forwarded to, `host:port`.
    server: String,
    /// What takes the place of what in answers.
    renamed: Option<(String, String)>,
    orders: Vec<Order>,
    muted: bool,
    /// On these texts it hangs up.
    detested: Vec<&'static str>,
    /// How often it did.
    hung_up: usize,
    /// How many clients have connected.
    connections: usize,
}

#[derive(Debug)]
struct Order {
    answer: Answer,
    /// `None` only tells.
    silence: Option<Silence>,
    /// The answer is kept back for so long.
    delay: Duration,
    /// Told when the answer came.
    came: oneshot::Sender<Instant>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to this server, `host:port`.
    pub async fn start(server: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let orders = Orders { server: server.into(), ..Orders::default() };
        let orders = Arc::new(Mutex::new(orders));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&orders)));
        Ok(Self { address, orders, accepting })
    }

    /// Forwards new connections to this server, `host:port`: one that had to know this proxy's address before it
    /// was started.
    pub fn forward_to(&self, server: impl Into<String>) {
        lock(&self.orders).server = server.into();
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts its own address in the place of the server's wherever that names itself in an answer, as text. Both must
    /// have the same length; nothing happens otherwise.
    pub fn stand_in(&self) {
        let mut orders = lock(&self.orders);
        let names = (orders.server.clone(), self.address.to_string());
        orders.renamed = (names.0.len() == names.1.len()).then_some(names);
    }

    /// Swallows one answer and all that comes after it on the same connection. Returns when that
    /// happened. Other connections are untouched.
    pub fn swallow(&self, answer: Answer, silence: Silence) -> oneshot::Receiver<Instant> {
        self.order(answer, Some(silence), Duration::ZERO)
    }

    /// Returns when this answer came and was forwarded.
    pub fn forwards(&self, answer: Answer) -> oneshot::Receiver<Instant> {
        self.order(answer, None, Duration::ZERO)
    }

    /// Keeps one answer back for so long; nothing else goes through its connection meanwhile. Returns when
    /// it came.
    pub fn delay(&self, answer: Answer, by: Duration) -> oneshot::Receiver<Instant> {
        self.order(answer, None, by)
    }

    /// Swallows every answer on every connection, also on those that are made meanwhile. A connection
    /// that missed an answer stays silent afterwards.
    pub fn mute(&self, muted: bool) {
        lock(&self.orders).muted = muted;
    }

    /// Closes every connection on which a client sends this text, to both sides. What the client sent
    /// before it is forwarded, from the text on nothing is.
    pub fn hang_up_on(&self, text: &'static str) {
        lock(&self.orders).detested.push(text);
    }

    /// How many connections were closed so.
    pub fn hung_up(&self) -> usize {
        lock(&self.orders).hung_up
    }

    /// How many connections clients have made.
    pub fn connections(&self) -> usize {
        lock(&self.orders).connections
    }

    fn order(
        &self,
        answer: Answer,
        silence: Option<Silence>,
        delay: Duration,
    ) -> oneshot::Receiver<Instant> {
        let (came, waiting) = oneshot::channel();
        lock(&self.orders).orders.push(Order { answer, silence, delay, came });
        waiting
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Its set of connections goes with it.
        self.accepting.abort();
    }
}

fn lock(orders: &Mutex<Orders>) -> MutexGuard<'_, Orders> {
    orders.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, orders: Arc<Mutex<Orders>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((client, _)) = listener.accept() => {
                let server = {
                    let mut orders = lock(&orders);
                    orders.connections += 1;
                    orders.server.clone()
                };
                let orders = Arc::clone(&orders);
                connections.spawn(async move {
                    // A server that refuses, or either side that leaves, ends this connection only.
                    if let Ok(server) = TcpStream::connect(server).await {
                        let _ = Connection::new(orders).carry(client, server).await;
                    }
                });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

struct Connection {
    orders: Arc<Mutex<Orders>>,
    /// What the client has sent since the server's last answer.
    request: Vec<u8>,
    /// The server has answered: the next thing that the client sends is a new request.
    answered: bool,
    /// The orders that this connection carries out, each with the answers that come before.
    under_way: Vec<(u32, Order)>,
    silent: Option<Silence>,
    /// The end of what the client has sent: a text may come in two parts.
    tail: Vec<u8>,
}

impl Connection {
    fn new(orders: Arc<Mutex<Orders>>) -> Self {
        Self {
            orders,
            request: Vec::new(),
            answered: true,
            under_way: Vec::new(),
            silent: None,
            tail: Vec::new(),
        }
    }

    async fn carry(mut self, mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut up, mut down) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        let mut server_left = false;
        loop {
            tokio::select! {
                read = client.read(&mut up) => {
                    let read = read.unwrap_or(0);
                    if read == 0 {
                        break;
                    }
                    if self.silent.is_none() {
                        if let Some(at) = self.detests(&up[..read]) {
                            server.write_all(&up[..at]).await?;
                            return Ok(());
                        }
                        self.asked(&up[..read]);
                        server.write_all(&up[..read]).await?;
                    }
                }
                read = server.read(&mut down), if !server_left => {
                    let read = read.unwrap_or(0);
                    tokio::time::sleep(self.came()).await;
                    if self.silent.is_some() {
                        // The client of a silent connection does not learn that the server has left.
                        server_left = read == 0;
                    } else if read == 0 {
                        break;
                    } else {
                        self.rename(&mut down[..read]);
                        client.write_all(&down[..read]).await?;
                    }
                }
            }
        }
        drop(client);
        if self.silent == Some(Silence::BothWays) && !server_left {
            let left = async { while server.read(&mut down).await.is_ok_and(|read| read > 0) {} };
            let _ = tokio::time::timeout(UNTOLD, left).await;
        }
        Ok(())
    }

    /// The client has sent this.
    fn asked(&mut self, bytes: &[u8]) {
        if std::mem::take(&mut self.answered) {
            self.request.clear();
            for (after, _) in &mut self.under_way {
                *after = after.saturating_sub(1);
            }
        }
        self.request.extend_from_slice(bytes);
        let excess = self.request.len().saturating_sub(REQUEST);
        self.request.drain(..excess);
        let request = &self.request;
        let mut orders = lock(&self.orders);
        let taken = orders.orders.extract_if(.., |order| contains(request, order.answer.to));
        self.under_way.extend(taken.map(|order| (order.answer.after, order)));
    }

    /// Where a text begins on which it hangs up, in what the client has sent last.
    fn detests(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut orders = lock(&self.orders);
        let longest = orders.detested.iter().map(|text| text.len()).max()?;
        let known = self.tail.len();
        self.tail.extend_from_slice(bytes);
        let found = orders.detested.iter().find_map(|text| position(&self.tail, text));
        orders.hung_up += usize::from(found.is_some());
        let excess = self.tail.len().saturating_sub(longest);
        self.tail.drain(..excess);
        found.map(|at| at.saturating_sub(known))
    }

    /// Puts the proxy's address in the place of the server's.
    fn rename(&self, answer: &mut [u8]) {
        let orders = lock(&self.orders);
        let Some((server, proxy)) = &orders.renamed else { return };
        while let Some(at) = position(answer, server) {
            answer[at..at + proxy.len()].copy_from_slice(proxy.as_bytes());
        }
    }

    /// The server has sent something. Returns for how long it is kept back.
    fn came(&mut self) -> Duration {
        let mut delay = Duration::ZERO;
        self.answered = true;
        if lock(&self.orders).muted {
            self.silent.get_or_insert(Silence::BothWays);
        }
        for (_, order) in self.under_way.extract_if(.., |(after, _)| *after == 0) {
            self.silent = self.silent.or(order.silence);
            delay = delay.max(order.delay);
            // Nobody may be waiting any more.
            let _ = order.came.send(Instant::now());
        }
        delay
    }
}

impl Drop for Connection {
    /// Another connection carries out what this one has not.
    fn drop(&mut self) {
        let left = self.under_way.drain(..).map(|(_, order)| order);
        lock(&self.orders).orders.extend(left);
    }
}

fn contains(request: &[u8], text: &str) -> bool {
    text.is_empty() || position(request, text).is_some()
}

fn position(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every line with itself.
    async fn echo() -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = client.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        (address, serving)
    }

    async fn ask(client: &mut TcpStream, text: &str) -> Option<usize> {
        client.write_all(text.as_bytes()).await.unwrap();
        let mut answer = vec![0; text.len()];
        let read = client.read_exact(&mut answer);
        tokio::time::timeout(Duration::from_millis(200), read).await.ok().map(Result::unwrap)
    }

    #[tokio::test]
    async fn one_answer_is_swallowed_and_its_connection_falls_silent() {
        let (server, serving) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        let mut one = TcpStream::connect(proxy.address()).await.unwrap();
        let mut two = TcpStream::connect(proxy.address()).await.unwrap();
        let swallowed = proxy.swallow(Answer { to: "pause", after: 1 }, Silence::OneWay);
        let forwarded = proxy.forwards(Answer { to: "read", after: 0 });
        assert_eq!(ask(&mut one, "read").await, Some(4));
        forwarded.await.unwrap();
        assert_eq!(ask(&mut one, "pause").await, Some(5));
        assert_eq!(ask(&mut one, "bind").await, None);
        swallowed.await.unwrap();
        assert_eq!(ask(&mut one, "read").await, None, "it stays silent");
        assert_eq!(ask(&mut two, "pause").await, Some(5), "the others are untouched");
        serving.abort();
    }

    #[tokio::test]
    async fn one_answer_is_delayed_and_its_connection_goes_on() {
        let (server, serving) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        let by = Duration::from_millis(100);
        let delayed = proxy.delay(Answer { to: "read", after: 0 }, by);
        assert_eq!(ask(&mut client, "read").await, Some(4));
        assert!(delayed.await.unwrap().elapsed() >= by);
        assert_eq!(ask(&mut client, "bind").await, Some(4));
        serving.abort();
    }

    #[tokio::test]
    async fn muted_it_answers_nobody_and_afterwards_new_connections() {
        let (server, serving) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        let mut old = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut old, "read").await, Some(4));
        proxy.mute(true);
        assert_eq!(ask(&mut old, "read").await, None);
        proxy.mute(false);
        assert_eq!(ask(&mut old, "read").await, None, "it has missed an answer");
        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut new, "read").await, Some(4));
        serving.abort();
    }

    #[tokio::test]
    async fn new_connections_go_to_the_server_that_was_named_last() {
        let proxy = Proxy::start("nobody.invalid:1").await.unwrap();
        let (server, serving) = echo().await;
        proxy.forward_to(server);
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut client, "read").await, Some(4));
        serving.abort();
    }

    #[tokio::test]
    async fn a_server_that_names_itself_is_given_the_address_of_the_proxy() {
        let (server, serving) = echo().await;
        let proxy = Proxy::start(&server).await.unwrap();
        proxy.stand_in();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(format!("at {server}, {server}").as_bytes()).await.unwrap();
        let expected = format!("at {0}, {0}", proxy.address());
        let mut answer = vec![0; expected.len()];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, expected.as_bytes());
        serving.abort();
    }

    #[tokio::test]
    async fn it_hangs_up_on_a_text_also_when_that_comes_in_two_parts() {
        let (server, serving) = echo().await;
        let proxy = Proxy::start(server).await.unwrap();
        proxy.hang_up_on("poison");
        let mut one = TcpStream::connect(proxy.address()).await.unwrap();
        let mut two = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut two, "food").await, Some(4));
        one.set_nodelay(true).unwrap();
        assert_eq!(ask(&mut one, "po").await, Some(2));
        one.write_all(b"ison").await.unwrap();
        let mut rest = Vec::new();
        // A reset, when something of it was not read.
        let _ = one.read_to_end(&mut rest).await;
        assert_eq!((rest.as_slice(), proxy.hung_up()), (&b""[..], 1));
        assert_eq!(ask(&mut two, "food").await, Some(4), "the others are untouched");
        serving.abort();
    }
}
