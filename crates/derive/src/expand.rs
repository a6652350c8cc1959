//! The implementation that the derive writes.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Result, ext::IdentExt};

use crate::attributes::{OnFields, OnStruct};

pub(crate) fn typed_event(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        let message = "an event is a struct; give each kind of event a struct of its own";
        return Err(Error::new_spanned(&input.ident, message));
    };
    let on_struct = OnStruct::parse(&input.attrs)?;
    let on_fields = OnFields::parse(&data.fields)?;
    if let (Some(field), None) = (&on_fields.aggregate_id, &on_struct.aggregate) {
        let message =
            "names an aggregate of no type; add #[event(aggregate = \"…\")] to the struct";
        return Err(Error::new_spanned(field, message));
    }
    if let (Some(field), true) = (&on_fields.ordering_key, on_struct.unordered) {
        let message = "orders an event that the struct says is unordered; drop one of the two";
        return Err(Error::new_spanned(field, message));
    }

    let name = &input.ident;
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    let event_type = on_struct
        .event_type
        .map_or_else(|| name.unraw().to_string(), |event_type| event_type.value());
    let aggregate = on_struct
        .aggregate
        .map(|aggregate| quote!(const AGGREGATE: &'static ::core::primitive::str = #aggregate;));
    let version =
        on_struct.version.map(|version| quote!(const VERSION: ::core::primitive::i32 = #version;));
    let aggregate_id = on_fields.aggregate_id.map(|field| {
        quote! {
            fn aggregate_id(&self) -> ::core::option::Option<::std::string::String> {
                ::core::option::Option::Some(::std::string::ToString::to_string(&self.#field))
            }
        }
    });
    let ordering = match on_fields.ordering_key {
        Some(field) => Some(quote! {
            ::posthaste::Ordering::Key(::std::string::ToString::to_string(&self.#field))
        }),
        None => on_struct.unordered.then(|| quote!(::posthaste::Ordering::Unordered)),
    };
    let ordering =
        ordering.map(|ordering| quote!(fn ordering(&self) -> ::posthaste::Ordering { #ordering }));
    let upcast = on_struct.upcast.map(|function| {
        quote! {
            fn upcast(
                version: ::core::primitive::i32,
                payload: ::posthaste::typed::Value,
            ) -> ::core::option::Option<::posthaste::typed::Value> {
                #function(version, payload)
            }
        }
    });
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::posthaste::TypedEvent for #name #type_generics #where_clause {
            const TYPE: &'static ::core::primitive::str = #event_type;
            #version
            #aggregate
            #aggregate_id
            #ordering
            #upcast
        }
    })
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn refusal(input: DeriveInput) -> String {
        typed_event(&input).unwrap_err().to_string()
    }

    #[test]
    fn a_bare_struct_is_an_event_of_its_own_name() {
        let written = typed_event(&parse_quote!(
            struct DayEnded;
        ))
        .unwrap();
        let expected = quote! {
            #[automatically_derived]
            impl ::posthaste::TypedEvent for DayEnded {
                const TYPE: &'static ::core::primitive::str = "DayEnded";
            }
        };
        assert_eq!(written.to_string(), expected.to_string());
    }

    #[test]
    fn an_attribute_that_is_not_known_is_told_which_are() {
        let said = refusal(parse_quote!(
            #[event(kind = "x")]
            struct Placed;
        ));
        assert!(said.contains("a struct takes type, aggregate, version"), "{said}");
        let said = refusal(parse_quote!(
            struct Placed {
                #[event(id)]
                order: u64,
            }
        ));
        assert!(said.contains("a field takes aggregate_id and ordering_key"), "{said}");
    }

    #[test]
    fn wrong_values_are_refused_with_what_would_be_right() {
        let said = refusal(parse_quote!(
            #[event(version = 0)]
            struct Placed;
        ));
        assert!(said.contains("the smallest is 1"), "{said}");
        let said = refusal(parse_quote!(
            #[event(version = "2")]
            struct Placed;
        ));
        assert!(said.contains("expected integer literal"), "{said}");
        let said = refusal(parse_quote!(
            #[event(type = "")]
            struct Placed;
        ));
        assert!(said.contains("is empty"), "{said}");
        let said = refusal(parse_quote!(
            #[event(type = Placed)]
            struct Placed;
        ));
        assert!(said.contains("expected string literal"), "{said}");
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let said = refusal(parse_quote!(
            struct Placed {
                #[event(aggregate_id)]
                order: u64,
            }
        ));
        assert!(said.contains("#[event(aggregate = \"…\")]"), "{said}");
        let said = refusal(parse_quote! {
            #[event(aggregate = "Order")]
            struct Placed { #[event(aggregate_id)] order: u64, #[event(aggregate_id)] line: u64 }
        });
        assert!(said.contains("stands here twice"), "{said}");
        let said = refusal(parse_quote! {
            #[event(unordered)]
            struct Placed(#[event(ordering_key)] String);
        });
        assert!(said.contains("drop one of the two"), "{said}");
        let said = refusal(parse_quote!(
            enum Order {
                Placed,
                Paid,
            }
        ));
        assert!(said.contains("a struct of its own"), "{said}");
    }
}
