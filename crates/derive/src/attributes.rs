//! What `#[event(…)]` says, on the struct and on its fields.

use syn::{Attribute, Error, Fields, LitInt, LitStr, Member, Path, Result, meta::ParseNestedMeta};

/// What stands on the struct.
#[derive(Default)]
pub(crate) struct OnStruct {
    pub(crate) event_type: Option<LitStr>,
    pub(crate) aggregate: Option<LitStr>,
    pub(crate) version: Option<i32>,
    pub(crate) upcast: Option<Path>,
    pub(crate) unordered: bool,
}

/// What stands on the fields.
#[derive(Default)]
pub(crate) struct OnFields {
    pub(crate) aggregate_id: Option<Member>,
    pub(crate) ordering_key: Option<Member>,
}

impl OnStruct {
    pub(crate) fn parse(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        each(attributes, |meta| {
            if meta.path.is_ident("type") {
                once(&mut found.event_type, &meta, name)
            } else if meta.path.is_ident("aggregate") {
                once(&mut found.aggregate, &meta, name)
            } else if meta.path.is_ident("version") {
                once(&mut found.version, &meta, version)
            } else if meta.path.is_ident("upcast") {
                once(&mut found.upcast, &meta, |meta| meta.value()?.parse())
            } else if meta.path.is_ident("unordered") {
                found.unordered = true;
                Ok(())
            } else {
                Err(meta.error(
                    "not known here; a struct takes type, aggregate, version, upcast and unordered",
                ))
            }
        })?;
        Ok(found)
    }
}

impl OnFields {
    pub(crate) fn parse(fields: &Fields) -> Result<Self> {
        let mut found = Self::default();
        for (field, member) in fields.iter().zip(fields.members()) {
            each(&field.attrs, |meta| {
                let place = if meta.path.is_ident("aggregate_id") {
                    &mut found.aggregate_id
                } else if meta.path.is_ident("ordering_key") {
                    &mut found.ordering_key
                } else {
                    let known = "not known here; a field takes aggregate_id and ordering_key";
                    return Err(meta.error(known));
                };
                once(place, &meta, |_| Ok(member.clone()))
            })?;
        }
        Ok(found)
    }
}

fn each(
    attributes: &[Attribute],
    mut read: impl FnMut(ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    let ours = attributes.iter().filter(|attribute| attribute.path().is_ident("event"));
    for attribute in ours {
        attribute.parse_nested_meta(&mut read)?;
    }
    Ok(())
}

fn once<T>(
    place: &mut Option<T>,
    meta: &ParseNestedMeta<'_>,
    read: impl FnOnce(&ParseNestedMeta<'_>) -> Result<T>,
) -> Result<()> {
    if place.is_some() {
        return Err(meta.error("stands here twice; once is enough"));
    }
    *place = Some(read(meta)?);
    Ok(())
}

fn name(meta: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let text: LitStr = meta.value()?.parse()?;
    if text.value().is_empty() {
        return Err(Error::new(text.span(), "is empty; leave it out or give it a name"));
    }
    Ok(text)
}

fn version(meta: &ParseNestedMeta<'_>) -> Result<i32> {
    let number: LitInt = meta.value()?.parse()?;
    match number.base10_parse() {
        Ok(version) if version >= 1 => Ok(version),
        _ => Err(Error::new(number.span(), "a version is a whole number, and the smallest is 1")),
    }
}
