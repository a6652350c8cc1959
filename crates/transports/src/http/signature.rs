//! Signatures of the Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, one for each key.

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use posthaste_core::{Error, Result, Secret};
use ring::hmac;

/// How long a key may be, in bytes: what the Standard Webhooks say.
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 24..=64;

/// Receivers read secrets with and without the padding at their end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Signs requests with each of its keys, so that receivers can change theirs one by one.
pub(super) struct Signer {
    keys: Vec<hmac::Key>,
}

impl Signer {
    /// Takes secrets of the form `whsec_BASE64`.
    pub(super) fn new(secrets: &[Secret]) -> Result<Self> {
        let keys = secrets.iter().map(key).collect::<Result<_>>()?;
        Ok(Self { keys })
    }

    /// The value of `webhook-signature`, or nothing when there is no key.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> Option<String> {
        let signatures: Vec<String> = self
            .keys
            .iter()
            .map(|key| {
                let mut context = hmac::Context::with_key(key);
                context.update(format!("{id}.{timestamp}.").as_bytes());
                context.update(body);
                format!("v1,{}", BASE64.encode(context.sign()))
            })
            .collect();
        (!signatures.is_empty()).then(|| signatures.join(" "))
    }
}

fn key(secret: &Secret) -> Result<hmac::Key> {
    let bytes = secret
        .expose()
        .strip_prefix("whsec_")
        .and_then(|text| BASE64.decode(text).ok())
        .filter(|bytes| KEY_LENGTH.contains(&bytes.len()))
        .ok_or_else(|| {
            Error::invalid(
                "a signing secret is whsec_ and 24 to 64 bytes in base64, as the Standard \
                 Webhooks have it; one of the given is not",
            )
        })?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_has_its_signature() {
        let signer = Signer::new(&[Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]).unwrap();
        let signature =
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn a_secret_of_another_form_is_refused_without_a_word_of_it() {
        for secret in ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_hush", "whsec_aHVzaA==", "whsec_"]
        {
            let error = Signer::new(&[Secret::new(secret)]).err().unwrap().to_string();
            assert!(!error.contains("hush") && !error.contains("MfKQ"), "{error}");
        }
    }
}
