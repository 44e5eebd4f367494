/* A mail plugin for the stock Dovecot 2.3: a commit of changes, and a look for changes, of a
 * mailbox are one transaction each, however many locks they take.  See systx_shim.c. */
#include "lib.h"
#include "mail-storage-private.h"
#include "mail-storage-hooks.h"
#include "module-context.h"

#include "systx_shim.h"

#pragma weak systx_mail_together
#pragma weak systx_mail_apart

struct systx_mailbox {
    union mailbox_module_context module_ctx;
};

static MODULE_CONTEXT_DEFINE_INIT(systx_storage_module, &mail_storage_module_register);

static struct mailbox_vfuncs *super_of(struct mailbox *box) {
    struct systx_mailbox *mine = MODULE_CONTEXT_REQUIRE(box, systx_storage_module);
    return &mine->module_ctx.super;
}

const char *systx_plugin_version = DOVECOT_ABI_VERSION;
void systx_plugin_init(struct module *module);
void systx_plugin_deinit(void);

static int commit(struct mailbox_transaction_context *t,
                  struct mail_transaction_commit_changes *changes) {
    struct mailbox_vfuncs *super = super_of(t->box);
    systx_mail_together();
    int done = super->transaction_commit(t, changes);
    systx_mail_apart();
    return done;
}

static struct mailbox_sync_context *look(struct mailbox *box, enum mailbox_sync_flags flags) {
    struct mailbox_vfuncs *super = super_of(box);
    systx_mail_together();
    struct mailbox_sync_context *context = super->sync_init(box, flags);
    systx_mail_apart();
    return context;
}

static void allocated(struct mailbox *box) {
    if (strcmp(box->storage->name, "maildir") != 0)
        return;
    struct mailbox_vfuncs *v = box->vlast;
    struct systx_mailbox *mine = p_new(box->pool, struct systx_mailbox, 1);
    mine->module_ctx.super = *v;
    box->vlast = &mine->module_ctx.super;
    v->transaction_commit = commit;
    v->sync_init = look;
    MODULE_CONTEXT_SET(box, systx_storage_module, mine);
}

static struct mail_storage_hooks hooks = {.mailbox_allocated = allocated};

void systx_plugin_init(struct module *module) {
    if (systx_mail_together == NULL)
        i_fatal("systx: libsystx_dovecot.so is not preloaded: see import_environment");
    mail_storage_hooks_add(module, &hooks);
}

void systx_plugin_deinit(void) { mail_storage_hooks_remove(&hooks); }
