//! Generated C: types of arguments, unpack functions for the device, stubs and registration for the host.

use crate::types::{Function, Record, Role, Type, round_up};
use std::fmt::Write as _;

/// Definitions of the types of a file. Equal types are defined once.
#[derive(Debug, Default)]
struct Types {
    text: String,
    known: Vec<Record>,
}

impl Types {
    /// The name in C of a type, defined if it is a record.
    fn name(&mut self, of: &Type) -> String {
        match of {
            Type::Integer { signed, size } => {
                let sign = if *signed { "signed" } else { "unsigned" };
                let word = match size {
                    1 => "char",
                    2 => "short",
                    4 => "int",
                    8 => "long",
                    _ => "__int128",
                };
                format!("{sign} {word}")
            }
            Type::Bool => "_Bool".to_owned(),
            Type::Float(4) => "float".to_owned(),
            Type::Float(_) => "double".to_owned(),
            Type::Pointer => "void *".to_owned(),
            // C passes no arrays by value; only members are arrays, and they are declared with their element's type.
            Type::Array { of, .. } => self.name(of),
            Type::Record(record) => self.record(record),
        }
    }

    fn record(&mut self, record: &Record) -> String {
        let word = if record.is_union { "union" } else { "struct" };
        if let Some(at) = self.known.iter().position(|known| known == record) {
            return format!("{word} dpacc_type_{at}");
        }
        let natural = record.is_natural();
        let mut body = String::new();
        let mut end = 0;
        for (at, member) in record.members.iter().enumerate() {
            if !record.is_union && !natural && member.offset > end {
                let _ = writeln!(body, "\tunsigned char pad{at}[{}];", member.offset - end);
            }
            let dimensions = dimensions(&member.of);
            let name = self.name(&member.of);
            let _ = writeln!(body, "\t{name} m{at}{dimensions};");
            end = end.max(member.offset.saturating_add(member.of.size()));
        }
        if !natural && end < record.size {
            let (name, count) = if record.is_union {
                ("all", record.size)
            } else {
                ("tail", record.size - end)
            };
            let _ = writeln!(body, "\tunsigned char {name}[{count}];");
        }
        let at = self.known.len();
        self.known.push(record.clone());
        let attributes = match (natural, record.align == record.natural_align()) {
            (true, true) => String::new(),
            (true, false) => format!(" __attribute__((aligned({})))", record.align),
            (false, _) => format!(" __attribute__((packed, aligned({})))", record.align),
        };
        let _ = write!(
            self.text,
            "{word} dpacc_type_{at} {{\n{body}}}{attributes};\n\
             _Static_assert(sizeof({word} dpacc_type_{at}) == {}, \"size on the device\");\n",
            record.size
        );
        format!("{word} dpacc_type_{at}")
    }
}

/// Dimensions of an array, such as `[2][3]`.
fn dimensions(of: &Type) -> String {
    let (mut of, mut text) = (of, String::new());
    while let Type::Array { of: element, count } = of {
        let _ = write!(text, "[{count}]");
        of = element;
    }
    text
}

/// The type with which C passes a value in a variable list.
fn promoted(of: &Type, name: &str) -> String {
    match of {
        Type::Integer { size: 1 | 2, .. } | Type::Bool => "int".to_owned(),
        Type::Float(4) => "double".to_owned(),
        _ => name.to_owned(),
    }
}

/// C source of the unpack functions.
#[must_use]
pub(crate) fn device(functions: &[Function]) -> String {
    let mut types = Types::default();
    let mut bodies = String::new();
    for function in functions {
        let names: Vec<String> = function
            .parameters
            .iter()
            .map(|of| types.name(of))
            .collect();
        let unpack = function.unpack();
        let _ = write!(
            bodies,
            "\nunsigned long {unpack}(void *buffer, void *function);\n\
             unsigned long {unpack}(void *buffer, void *function)\n{{\n\tconst unsigned char *in = __builtin_assume_aligned(buffer, 8);\n\t(void)in;\n"
        );
        for (at, (name, offset)) in names.iter().zip(function.offsets()).enumerate() {
            let _ = write!(
                bodies,
                "\t{name} a{at};\n\t__builtin_memcpy(&a{at}, in + {offset}, sizeof(a{at}));\n"
            );
        }
        let list = if names.is_empty() {
            "void".to_owned()
        } else {
            names.join(", ")
        };
        let values: Vec<String> = (0..names.len()).map(|at| format!("a{at}")).collect();
        let values = values.join(", ");
        match function.role {
            Role::Kernel => {
                let _ = writeln!(
                    bodies,
                    "\t((void (*)({list}))function)({values});\n\treturn 0;\n}}"
                );
            }
            Role::Rpc => {
                let _ = writeln!(
                    bodies,
                    "\treturn ((unsigned long (*)({list}))function)({values});\n}}"
                );
            }
        }
    }
    format!(
        "/* Unpack functions, generated by dpacc. */\n{}{bodies}",
        types.text
    )
}

/// Symbol of the function that packs the arguments of a function.
fn pack(app: &str, function: &Function) -> String {
    format!("__dpacc_pack_{app}_{}", function.name)
}

/// C source of the stubs and pack functions of some functions, for the host.
#[must_use]
pub(crate) fn stubs(app: &str, functions: &[Function]) -> String {
    declared(app, functions, "")
}

/// The same, with attributes of the stubs.
fn declared(app: &str, functions: &[Function], attributes: &str) -> String {
    let mut types = Types::default();
    let mut bodies = String::new();
    for (number, function) in functions.iter().enumerate() {
        stub(&mut bodies, number, function, attributes);
        let symbol = pack(app, function);
        let (bytes, name) = (function.buffer(), &function.name);
        let _ = write!(
            bodies,
            "\n/* Arguments of {name}: {bytes} bytes. */\n\
             __attribute__((visibility(\"hidden\"))) void dpacc_pack_{number}(void *buffer, va_list list) __asm__(\"{symbol}\");\n\
             void dpacc_pack_{number}(void *buffer, va_list list)\n{{\n\t(void)list;\n\t__builtin_memset(buffer, 0, {bytes});\n"
        );
        for (at, (of, offset)) in function
            .parameters
            .iter()
            .zip(function.offsets())
            .enumerate()
        {
            let name = types.name(of);
            let passed = promoted(of, &name);
            let cast = if passed == name {
                String::new()
            } else {
                format!("({name})")
            };
            let _ = write!(
                bodies,
                "\t{name} a{at} = {cast}va_arg(list, {passed});\n\
                 \t__builtin_memcpy((unsigned char *)buffer + {offset}, &a{at}, sizeof(a{at}));\n"
            );
        }
        bodies.push_str("}\n");
    }
    format!(
        "/* Functions of the DPA for the host, generated by dpacc. */\n#include <stdarg.h>\n#include <stdio.h>\n\
         #include <stdlib.h>\n\n{}{bodies}",
        types.text
    )
}

/// A stub has the function's name, for its address. Its text differs from those of the other stubs, so that no linker
/// merges them.
fn stub(out: &mut String, number: usize, function: &Function, attributes: &str) {
    let (name, word) = (&function.name, function.role.word());
    let _ = write!(
        out,
        "\n{attributes}void dpacc_stub_{number}(void) __asm__(\"{name}\");\nvoid dpacc_stub_{number}(void)\n{{\n\
         \tfputs(\"{name} is a {word} of the DPA: pass its address to the library that starts it\\n\", stderr);\n\
         \tabort();\n}}\n"
    );
}

/// The program's own source file for the host: the program, and the registration of all functions when the host program
/// starts. `own` are functions that no source file has.
#[must_use]
pub(crate) fn meta(app: &str, functions: &[Function], own: &[Function]) -> String {
    let mut text = if own.is_empty() {
        String::new()
    } else {
        // Several programs of one host program may have the same library.
        declared(app, own, "__attribute__((weak)) ")
    };
    let _ = write!(
        text,
        "/* Program {app}, generated by dpacc. */\n#include <stdarg.h>\n#include <stddef.h>\n#include <stdio.h>\n\n\
         #ifndef __DPA_EXEC_STUB_FILE__\n#define __DPA_EXEC_STUB_FILE__ \"device_exec.stub.inc\"\n#endif\n\
         static const unsigned char dpacc_program[] __attribute__((section(\".dpa_obj\"), aligned(64))) = {{\n\
         #include __DPA_EXEC_STUB_FILE__\n}};\n\n\
         struct flexio_app;\n\
         struct dpacc_attributes {{\n\tconst char *app_name;\n\tvoid *app_ptr;\n\tsize_t app_bsize;\n\
         \tchar *app_sig_sec_name;\n}};\n\
         int dpacc_create(struct dpacc_attributes *, struct flexio_app **) __asm__(\"flexio_app_create\");\n\
         int dpacc_destroy(struct flexio_app *) __asm__(\"flexio_app_destroy\");\n\
         int dpacc_register(struct flexio_app *, const char *, const char *, void (*)(void), size_t,\n\
         \t\t   void (*)(void *, va_list)) __asm__(\"flexio_func_pup_register\");\n\n\
         extern struct flexio_app *dpacc_app __asm__(\"{app}\");\nstruct flexio_app *dpacc_app;\n\n"
    );
    for (at, function) in functions.iter().enumerate() {
        let (name, pack) = (&function.name, pack(app, function));
        let _ = write!(
            text,
            "void dpacc_function_{at}(void) __asm__(\"{name}\");\n\
             __attribute__((visibility(\"hidden\"))) void dpacc_packer_{at}(void *, va_list) __asm__(\"{pack}\");\n"
        );
    }
    text.push_str(
        "\nstatic const struct {\n\tconst char *name;\n\tconst char *unpack;\n\tvoid (*stub)(void);\n\tsize_t bytes;\n\
         \tvoid (*pack)(void *, va_list);\n} dpacc_functions[] = {\n",
    );
    for (at, function) in functions.iter().enumerate() {
        let (name, unpack, bytes) = (&function.name, function.unpack(), function.buffer());
        let _ = writeln!(
            text,
            "\t{{\"{name}\", \"{unpack}\", dpacc_function_{at}, {bytes}, dpacc_packer_{at}}},"
        );
    }
    let _ = write!(
        text,
        "\t{{NULL, NULL, NULL, 0, NULL}},\n}};\n\n\
         __attribute__((constructor)) static void dpacc_start(void)\n{{\n\
         \tstruct dpacc_attributes attributes = {{\"{app}\", (void *)dpacc_program, sizeof(dpacc_program), NULL}};\n\
         \tint status = dpacc_create(&attributes, &dpacc_app);\n\n\
         \tfor (size_t at = 0; status == 0 && dpacc_functions[at].name; at++)\n\
         \t\tstatus = dpacc_register(dpacc_app, dpacc_functions[at].name, dpacc_functions[at].unpack,\n\
         \t\t\t\t\tdpacc_functions[at].stub, dpacc_functions[at].bytes, dpacc_functions[at].pack);\n\
         \tif (status != 0)\n\
         \t\tfprintf(stderr, \"the DPA program {app} cannot be registered: status %d\\n\", status);\n}}\n\n\
         __attribute__((destructor)) static void dpacc_end(void)\n{{\n\
         \tif (dpacc_app)\n\t\tdpacc_destroy(dpacc_app);\n\tdpacc_app = NULL;\n}}\n"
    );
    text
}

/// The file that a source's host file includes, if no other is named.
#[must_use]
pub(crate) fn host(stem: &str) -> String {
    format!(
        "/* Generated by dpacc. */\n#ifndef __DPA_OBJ_STUB_FILE__\n#define __DPA_OBJ_STUB_FILE__ \"{stem}.stub.inc\"\n\
         #endif\n#include __DPA_OBJ_STUB_FILE__\n"
    )
}

/// Bytes as the elements of an array in C. The length is a multiple of 8.
#[must_use]
pub(crate) fn bytes(data: &[u8]) -> String {
    let length = usize::try_from(round_up(data.len() as u64, 8)).unwrap_or(data.len());
    let mut text = String::with_capacity(length * 4);
    for at in 0..length {
        let _ = write!(text, "{},", data.get(at).unwrap_or(&0));
        if at % 32 == 31 {
            text.push('\n');
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_padded_to_words() {
        assert_eq!(bytes(&[1, 255]), "1,255,0,0,0,0,0,0,\n");
    }

    #[test]
    fn narrow_arguments_are_read_as_c_passes_them() {
        let function = Function {
            name: "k".to_owned(),
            role: Role::Kernel,
            parameters: vec![
                Type::Integer {
                    signed: false,
                    size: 2,
                },
                Type::Float(4),
                Type::Bool,
                Type::Integer {
                    signed: true,
                    size: 8,
                },
            ],
        };
        let text = stubs("app", &[function]);
        for line in [
            "unsigned short a0 = (unsigned short)va_arg(list, int);",
            "float a1 = (float)va_arg(list, double);",
            "_Bool a2 = (_Bool)va_arg(list, int);",
            "signed long a3 = va_arg(list, signed long);",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
