//! A stream whose answers must be taken in time: a client that asks and never reads would hold its place for
//! ever.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Fails when what was written is not taken within the limit. Tells when it is.
pub(crate) struct WriteDeadline<S, F> {
    stream: S,
    limit: Duration,
    /// Called with every flush that is complete, also of nothing.
    flushed: F,
    /// Runs from the first byte that had to wait until everything is flushed.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S, F> WriteDeadline<S, F> {
    pub(crate) fn new(stream: S, limit: Duration, flushed: F) -> Self {
        Self { stream, limit, flushed, waiting: None }
    }

    fn in_time<T>(
        &mut self,
        answer: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if answer.is_ready() {
            return answer;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the answer was not taken in time")))
    }
}

impl<S: AsyncRead + Unpin, F: Unpin> AsyncRead for WriteDeadline<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, F: Fn() + Unpin> AsyncWrite for WriteDeadline<S, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.in_time(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.waiting = None;
        }
        if matches!(flushed, Poll::Ready(Ok(()))) {
            (self.flushed)();
        }
        self.in_time(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn what_nobody_reads_fails_and_what_is_read_does_not() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut stream = WriteDeadline::new(ours, Duration::from_millis(50), || ());
        let error = stream.write_all(&[1; 20]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);

        let (ours, mut reads) = tokio::io::duplex(8);
        let mut stream = WriteDeadline::new(ours, Duration::from_mins(1), || ());
        let reader = tokio::spawn(async move {
            let mut read = vec![0; 20];
            reads.read_exact(&mut read).await.map(|_| read)
        });
        stream.write_all(&[1; 20]).await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(reader.await.unwrap().unwrap(), [1; 20]);
        assert!(stream.waiting.is_none(), "the next answer has its own time");
        theirs.read_exact(&mut [0; 8]).await.unwrap();
    }
}
